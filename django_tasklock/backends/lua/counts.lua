-- The number of locks in each state.
-- KEYS: 1 index by expiry
-- ARGV: 1 ms left below which a lock is expiring
-- Reply: {live, expiring, no_expiry, orphaned}
-- use: clock
local now = clock()
local live = '(' .. string.format('%.0f', now)
return {
  redis.call('ZCOUNT', KEYS[1], live, '+inf'),
  redis.call('ZCOUNT', KEYS[1], live, string.format('%.0f', now + tonumber(ARGV[1]))),
  redis.call('ZCOUNT', KEYS[1], '+inf', '+inf'),
  redis.call('ZCOUNT', KEYS[1], '-inf', string.format('%.0f', now)),
}
