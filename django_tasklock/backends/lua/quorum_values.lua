-- The values of some locks on an instance.
-- KEYS: locks
-- Reply: the value of each; nil: missing, or of another type
return redis.call('MGET', unpack(KEYS))
