-- Extend a permit: for ttl unless renewed, its timeout for hold, both from now.
-- KEYS: see _permits.lua
-- ARGV: 1 token, 2 ttl ms, 3 hold ms
-- Reply: 1 extended, 0 the token has no permit
-- use: clock permits
local now = clock()
drop_expired(now)
redis.pcall('ZREM', KEYS[1], '') -- see even_if_full
local value = redis.call('HGET', KEYS[2], ARGV[1])
if not value then return 0 end
value = string.gsub(value, '"until":%d+}$', string.format('"until":%.0f}', now + tonumber(ARGV[3])))
redis.call('HSET', KEYS[2], ARGV[1], value)
redis.call('ZADD', KEYS[1], now + tonumber(ARGV[2]), ARGV[1])
extend_keys(now, ARGV[3])
return 1
