-- Give the lock back and hand it to the longest waiter. Also how a waiter leaves the queue.
-- KEYS: as in every script that grants
-- ARGV: 1 token, 2 queue entry to remove ('' or absent: none)
-- Reply: 1 released, 0 gone, -1 somebody else's
if (ARGV[2] or '') ~= '' then quit(ARGV[1], ARGV[2]) end
local value = redis.call('GET', KEYS[1])
if not value or not owned(value, ARGV[1]) then
  redis.call('HDEL', SEEN, ARGV[1]) -- of a place that it may have without knowing: now it is nobody's unless heard
  return value and -1 or 0
end
redis.call('DEL', KEYS[1])
if not pass_on() then forget(KEYS[1]) end
return 1
