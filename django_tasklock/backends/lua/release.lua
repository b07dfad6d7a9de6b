-- Give the lock back and hand it to the longest waiter. Also how a waiter leaves the queue.
-- KEYS: as in every script that grants
-- ARGV: 1 token, 2 queue entry to remove ('' or absent: none)
-- Reply: 1 released, 0 gone, -1 somebody else's
local call, key, token, entry = redis.call, KEYS[1], ARGV[1], ARGV[2] or ''
local value, head = call('GET', key)
local mine = value and string.sub(value, 11, 11 + #token) == token .. '"' -- as in _owned.lua
if mine then
  call('DEL', key)
  if entry == '' then
    head = call('ZPOPMIN', KEYS[4])
    if not head[1] then -- nobody waits
      call('ZREM', KEYS[2], key)
      return 1
    end
  end
end
-- use: clock fence grant waiters pass_on
if entry ~= '' then quit(token, entry) end
if not mine then
  redis.call('HDEL', SEEN, token) -- of a place that it may have without knowing: now it is nobody's unless heard
  return value and -1 or 0
end
if not pass_on(nil, head) then redis.call('ZREM', KEYS[2], KEYS[1]) end
return 1
