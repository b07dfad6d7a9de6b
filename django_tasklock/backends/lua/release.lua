-- Release the lock and hand it to the longest waiter. Waiters also leave the queue with it.
-- KEYS: as in acquire.lua, 1 to 5; if the caller passes the count: 1 lock, 2 index, 3 queue, 4 copy, 5 counts
-- ARGV: 1 token, 2 queue entry to remove ('' or absent: none); if the caller passes the count: 2 field, 3 increment
-- Reply: 1 released, 0 the lock is free, -1 held by another token
local call, key, token = redis.call, KEYS[1], ARGV[1]
local ready = #ARGV == 3 and ARGV[3]
local entry, queue = not ready and ARGV[2] or '', ready and KEYS[3] or KEYS[4]
local value, head = call('GET', key)
local mine = value and string.sub(value, 11, 11 + #token) == token .. '"' -- as in _owned.lua
if mine then
  local copy, counts, field, by, n = KEYS[4], KEYS[5], ARGV[2], ready, nil
  local kind = ready or string.match(value, '^,"holder":{"kind":"([^"]*)"', 12 + #token)
  if kind and not ready then
    local root, at, time = string.sub(KEYS[2], 1, -6), tonumber(string.match(value, '"at":(%d+),', -96)) or 0, call('TIME')
    local held = time[1] * 1000 + math.floor(time[2] / 1000) - at
    copy = root .. 'open:' .. string.sub(key, #root + 1)
    if held >= 0 and held < 1000 then -- a longer hold is also recorded in the history
      local bucket = held <= 5 and 0 or held <= 25 and 1 or held <= 100 and 2 or held <= 500 and 3 or 4
      counts, field = root .. 'counts:' .. math.floor(at / 3600000), 'done:' .. bucket .. '|' .. kind
      by = string.format('1%012d', held)
    end
  end
  local open = kind and call('DEL', key, copy) == 2
  if not kind then
    call('DEL', key)
  elseif open and by then
    n = redis.pcall('HINCRBY', counts, field, by)
  end
  -- all is counted by now, unless the field is new or too large
  if kind and (type(n) ~= 'number' or n < 1999999999999 or n >= 1e17) then
    -- use: clock counts
    count_at(KEYS[2], (clock()))
    if n then
      check_hour_count(n, counts, field, by)
    else
      count_end(name_of(key), value, 'released', COUNTED_AT, open or delete_copy(name_of(key)))
    end
  end
  if entry == '' then
    head = call('ZPOPMIN', queue)
    if not head[1] then -- no waiters
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
if entry ~= '' then leave_queue(token, entry) end
if not mine then
  redis.call('HDEL', SEEN, token) -- if it is in the queue nevertheless, its entry is skipped now
  return value and -1 or 0
end
if not pass_on(nil, head) then redis.call('ZREM', KEYS[2], KEYS[1]) end
return 1
