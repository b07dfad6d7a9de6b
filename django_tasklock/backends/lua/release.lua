-- Give the lock back and hand it to the longest waiter. Also how a waiter leaves the queue.
-- KEYS: as in every script that grants; where the count is ready: 1 lock, 2 index, 3 queue, 4 copy of the value, 5 counts
-- ARGV: 1 token, 2 queue entry to remove ('' or absent: none); where the count is ready: 2 field, 3 by how much
-- Reply: 1 released, 0 gone, -1 somebody else's
local call, key, token = redis.call, KEYS[1], ARGV[1]
local ready = ARGV[3]
local entry, queue = not ready and ARGV[2] or '', ready and KEYS[3] or KEYS[4]
local value, head = call('GET', key)
local mine = value and string.sub(value, 11, 11 + #token) == token .. '"' -- as in _owned.lua
if mine then
  local n, counted
  if ready then
    n = call('DEL', key, KEYS[4]) == 2 and redis.pcall('HINCRBY', KEYS[5], ARGV[2], ready)
    counted = type(n) == 'number' and n >= 1999999999999 and n < 1e17 -- neither the first of its field nor too large
  else
    call('DEL', key)
    counted = not string.find(value, ',"holder":{"kind":"', 12 + #token, true)
  end
  if not counted then
    -- use: clock counts
    count_at(KEYS[2], (clock()))
    if n then
      looked_ready(n, KEYS[5], ARGV[2], ready)
    else
      count_end(name_of(key), value, 'released', COUNTED_AT, close(name_of(key)))
    end
  end
  if entry == '' then
    head = call('ZPOPMIN', queue)
    if not head[1] then -- nobody waits
      call('ZREM', KEYS[2], key)
      return 1
    end
  end
end
if ready then
  local root = string.sub(KEYS[2], 1, -6)
  KEYS[3], KEYS[4], KEYS[5] = root .. 'fence', queue, root .. 'seen:' .. string.sub(key, #root + 1)
end
-- use: clock fence counts grant waiters pass_on
count_at(KEYS[2], (clock()))
if entry ~= '' then quit(token, entry) end
if not mine then
  redis.call('HDEL', SEEN, token) -- of a place that it may have without knowing: now it is nobody's unless heard
  return value and -1 or 0
end
if not pass_on(nil, head) then redis.call('ZREM', KEYS[2], KEYS[1]) end
return 1
