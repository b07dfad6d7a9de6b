-- Who holds the lock.
-- KEYS: 1 lock, 2 queue
-- Reply: nil when nobody does, else {ms left (-1: no expiry), value, now ms, waiting}
-- use: values clock
local value = redis.pcall('GET', KEYS[1])
if not value then return false end
if type(value) == 'table' then value = '' end -- not a text: not our value
local now = clock()
local waiting = redis.pcall('ZCARD', KEYS[2])
if type(waiting) == 'table' then waiting = 0 end
return {redis.call('PTTL', KEYS[1]), clipped(value), now, waiting}
