-- The value of a lock.
-- KEYS: 1 lock, 2 queue
-- Reply: nil if it is free, else {ms left (-1: no expiry), value, now ms, number of waiters}
-- use: values clock
local value = redis.pcall('GET', KEYS[1])
if not value then return false end
if type(value) == 'table' then value = '' end -- of another type: foreign
local now = clock()
local waiting = redis.pcall('ZCARD', KEYS[2])
if type(waiting) == 'table' then waiting = 0 end
return {redis.call('PTTL', KEYS[1]), clipped(value), now, waiting}
