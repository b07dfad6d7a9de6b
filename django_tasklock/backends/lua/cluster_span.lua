-- The range of the locks of a state in the index of a bucket.
-- KEYS: 1 index by expiry
-- ARGV: 1 'live', 'expiring', 'no_expiry' or 'orphaned', 2 ms left below which a lock is expiring
-- Reply: one text, which is parsed faster than a list: how many of them expire, how many have no expiry, when the first
--        and the last expire (ms; 0: there is none), and the lower bound of the scores, for cluster_below.lua
-- use: clock
local now, which = clock(), ARGV[1]
local low, high, endless = '(' .. string.format('%.0f', now), '(+inf', 0
if which == 'expiring' then high = string.format('%.0f', now + ARGV[2]) end
if which == 'orphaned' then low, high = '-inf', string.format('%.0f', now) end
if which == 'no_expiry' then low = '(+inf' end
if which == 'live' or which == 'no_expiry' then endless = redis.call('ZCOUNT', KEYS[1], '+inf', '+inf') end
local number = redis.call('ZCOUNT', KEYS[1], low, high)
local first, last = {}, {}
if number > 0 then
  first = redis.call('ZRANGEBYSCORE', KEYS[1], low, high, 'WITHSCORES', 'LIMIT', 0, 1)
  last = redis.call('ZREVRANGEBYSCORE', KEYS[1], high, low, 'WITHSCORES', 'LIMIT', 0, 1)
end
return table.concat({number, endless, first[2] or 0, last[2] or 0, low}, ' ')
