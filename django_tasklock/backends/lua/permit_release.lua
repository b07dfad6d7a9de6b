-- Give a permit back, and what is free to the longest waiters. Also how a waiter leaves the queue.
-- KEYS: as in every script that grants
-- ARGV: 1 token, 2 queue entry to remove ('' or absent: none)
-- Reply: 1 released, 0 gone
-- use: clock fence counts waiters permits
if (ARGV[2] or '') ~= '' then quit(ARGV[1], ARGV[2]) end
local now = clock()
lapse(now)
local value = redis.call('HGET', KEYS[2], ARGV[1])
local had = redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[1])
local kind = had == 1 and kind_of(value)
if kind then count_time('limit.released', kind, now - (string.match(value, '"at":(%d+),', -96) or now)) end
serve()
forget_if_empty()
return had
