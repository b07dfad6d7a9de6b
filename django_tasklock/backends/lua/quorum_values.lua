-- What an instance has of some locks.
-- KEYS: locks
-- Reply: the value of each; nil: none, or not ours
return redis.call('MGET', unpack(KEYS))
