-- The number of tenants of each limiter.
-- KEYS: indexes of their tenants
-- Reply: numbers
local found = {}
for i, key in ipairs(KEYS) do found[i] = redis.call('ZCARD', key) end
return found
