-- Release the lock and hand it to the longest waiter. Waiters also leave the queue with it.
-- KEYS: as in acquire.lua
-- ARGV: 1 token, 2 '1': leave the queue ('' or absent: it is not in the queue)
-- Reply: 1 released, 0 the lock is free, -1 held by another token
-- use: values
local token = ARGV[1]
local value = redis.call('GET', KEYS[1])
if ARGV[2] == '1' then
  -- use: waiters
  leave_queue(token)
end
if not value or not owned(value, token) then
  redis.call('HDEL', KEYS[5], token) -- if it is in the queue nevertheless, it is skipped now
  return value and -1 or 0
end
redis.call('DEL', KEYS[1])
if redis.call('EXISTS', KEYS[4]) == 1 then
  -- use: clock fence grant waiters pass_on
  if pass_on() then return 1 end
end
redis.call('ZREM', KEYS[2], KEYS[1])
return 1
