-- Give the lock back and hand it to the longest waiter. Also how a waiter leaves the queue.
-- KEYS: 1 to 6 as in every script that grants
-- ARGV: 1 token, 2 queue entry to remove ('' or absent: none)
-- Reply: 1 released, 0 gone, -1 somebody else's
if ARGV[2] and ARGV[2] ~= '' then redis.call('ZREM', KEYS[4], ARGV[2]) end
local value = redis.call('GET', KEYS[1])
if not value then return 0 end
if not owned(value, ARGV[1]) then return -1 end
redis.call('DEL', KEYS[1])
if not pass_on() then forget(KEYS[1]) end
return 1
