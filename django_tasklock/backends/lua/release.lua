-- Give the lock back and hand it to the longest waiter. Also how a waiter leaves the queue.
-- KEYS: as in every script that grants; and where the count is made ready: 6 copy of the value, 7 counts of an hour
-- ARGV: 1 token, 2 queue entry to remove ('' or absent: none); or of a count: 2 field, 3 by how much
-- Reply: 1 released, 0 gone, -1 somebody else's
local call, key, token = redis.call, KEYS[1], ARGV[1]
local entry = not KEYS[7] and ARGV[2] or ''
local value, head = call('GET', key)
local mine = value and string.sub(value, 11, 11 + #token) == token .. '"' -- as in _owned.lua
if mine then
  local n, counted
  if KEYS[7] then
    n = call('DEL', key, KEYS[6]) == 2 and redis.pcall('HINCRBY', KEYS[7], ARGV[2], ARGV[3])
    counted = type(n) == 'number' and n >= 1999999999999 and n < 1e17 -- neither the first of its field nor too large
  else
    call('DEL', key)
    counted = not string.find(value, ',"holder":{"kind":"', 12 + #token, true)
  end
  if not counted then
    -- use: clock counts
    count_at(KEYS[2], (clock()))
    if n then
      looked_ready(n, KEYS[7], ARGV[2], ARGV[3])
    else
      count_end(name_of(key), value, 'released', COUNTED_AT, close(name_of(key)))
    end
  end
  if entry == '' then
    head = call('ZPOPMIN', KEYS[4])
    if not head[1] then -- nobody waits
      call('ZREM', KEYS[2], key)
      return 1
    end
  end
end
KEYS[7], KEYS[6] = nil, nil
-- use: clock fence counts grant waiters pass_on
count_at(KEYS[2], (clock()))
if entry ~= '' then quit(token, entry) end
if not mine then
  redis.call('HDEL', SEEN, token) -- of a place that it may have without knowing: now it is nobody's unless heard
  return value and -1 or 0
end
if not pass_on(nil, head) then redis.call('ZREM', KEYS[2], KEYS[1]) end
return 1
