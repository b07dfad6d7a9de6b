-- Let a member keep its permit: for ttl unless renewed, for hold at the most, both from now.
-- KEYS: as in every script that grants
-- ARGV: 1 token, 2 ttl ms, 3 hold ms
-- Reply: 1 extended, 0 it has none
-- use: values clock fence counts waiters permits
local now = clock()
lapse(now)
even_if_full(KEYS[1])
local value = redis.call('HGET', KEYS[2], ARGV[1])
if not value then return 0 end
value = string.gsub(value, '"until":%d+}$', string.format('"until":%.0f}', now + tonumber(ARGV[3])))
redis.call('HSET', KEYS[2], ARGV[1], value)
redis.call('ZADD', KEYS[1], now + tonumber(ARGV[2]), ARGV[1])
outlive(now, ARGV[3])
return 1
