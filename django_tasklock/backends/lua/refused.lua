-- The last that found the lock busy.
-- KEYS: 1 who found it busy
-- Reply: "<now ms> <holder json>" of each, the latest first
local found = redis.pcall('LRANGE', KEYS[1], 0, -1)
return found.err and {} or found
