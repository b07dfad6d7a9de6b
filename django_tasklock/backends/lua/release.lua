-- Release the lock and hand it to the longest waiter. Waiters also leave the queue with it.
-- KEYS: as in acquire.lua
-- ARGV: 1 token, 2 queue entry to remove ('' or absent: none)
-- Reply: 1 released, 0 the lock is free, -1 held by another token
local call, key, token, entry = redis.call, KEYS[1], ARGV[1], ARGV[2] or ''
local value, head = call('GET', key), nil
local mine = value and string.sub(value, 11, 11 + #token) == token .. '"' -- as in _owned.lua
if mine then
  call('DEL', key)
  if entry == '' then
    head = call('ZPOPMIN', KEYS[4])
    if not head[1] then -- no waiters
      call('ZREM', KEYS[2], key)
      return 1
    end
  end
end
-- use: clock fence grant waiters pass_on
if entry ~= '' then leave_queue(token, entry) end
if not mine then
  redis.call('HDEL', SEEN, token) -- if it is in the queue nevertheless, its entry is skipped now
  return value and -1 or 0
end
if not pass_on(nil, head) then redis.call('ZREM', KEYS[2], KEYS[1]) end
return 1
