-- The terms that whoever used these limiters last had.
-- KEYS: their meta
-- Reply: texts; '' where nothing is stored
local found = {}
for i, key in ipairs(KEYS) do found[i] = redis.call('HGET', key, 'terms') or '' end
return found
