-- Let the holder keep the lock: for ttl unless renewed, for hold at the most, both from now.
-- KEYS: 1 lock, 2 index by expiry, 3 index by the end of the timeout
-- ARGV: 1 token, 2 ttl ms, 3 hold ms
-- Reply: 1 extended, 0 not this token's lock
local value = redis.call('GET', KEYS[1])
if not value or not owned(value, ARGV[1]) then return 0 end
local now = clock()
value = string.gsub(value, '"until":%d+}$', string.format('"until":%.0f}', now + tonumber(ARGV[3])))
even_if_full(KEYS[2])
redis.call('SET', KEYS[1], value, 'PX', ARGV[2])
redis.call('ZADD', KEYS[2], now + tonumber(ARGV[2]), KEYS[1])
redis.call('ZADD', KEYS[3], now + tonumber(ARGV[3]), KEYS[1])
return 1
