-- Who holds the lock.
-- KEYS: 1 lock, 2 queue
-- Reply: nil when nobody does, else {ms left (-1: no expiry), value, now ms, waiting}
local value = redis.call('GET', KEYS[1])
if not value then return false end
local now = clock()
return {redis.call('PTTL', KEYS[1]), value, now, redis.call('ZCARD', KEYS[2])}
