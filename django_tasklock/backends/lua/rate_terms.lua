-- The terms of the last caller of each limiter.
-- KEYS: their meta
-- Reply: texts; '' if nothing is stored
local found = {}
for i, key in ipairs(KEYS) do found[i] = redis.call('HGET', key, 'terms') or '' end
return found
