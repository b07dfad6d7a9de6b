-- When the lease of an orphaned lock ended.
-- KEYS: 1 lock, 2 index by expiry
-- Reply: nil: it is held, or nothing is known of it; else {ms left, now ms}
-- use: clock
local ends = redis.call('ZSCORE', KEYS[2], KEYS[1])
local now = clock()
if not ends or tonumber(ends) > now or redis.call('EXISTS', KEYS[1]) == 1 then return false end
return {ends - now, now}
