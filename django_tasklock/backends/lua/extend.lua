-- Extend a lock: its key for ttl unless renewed, its timeout for hold, both from now.
-- KEYS: 1 lock, 2 index by expiry
-- ARGV: 1 token, 2 ttl ms, 3 hold ms
-- Reply: 1 extended, 0 not this token's lock
-- use: clock values
local value = redis.call('GET', KEYS[1])
if not value or not owned(value, ARGV[1]) then return 0 end
local now = clock()
redis.call('PEXPIRE', KEYS[1], ARGV[2]) -- first: a write that a full server allows
value = string.gsub(value, '"until":%d+}$', '"until":' .. (now + ARGV[3]) .. '}')
redis.call('SET', KEYS[1], value, 'PX', ARGV[2]) -- not KEEPTTL: a server that was stopped for so long has deleted the key
redis.call('ZADD', KEYS[2], now + ARGV[2], KEYS[1])
return 1
