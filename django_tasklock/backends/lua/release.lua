-- Give the lock back and hand it to the longest waiter. Also how a waiter leaves the queue.
-- KEYS: as in every script that grants
-- ARGV: 1 token, 2 queue entry to remove ('' or absent: none)
-- Reply: 1 released, 0 gone, -1 somebody else's
local call, key, token, entry = redis.call, KEYS[1], ARGV[1], ARGV[2] or ''
local value, head = call('GET', key)
local mine = value and string.sub(value, 11, 11 + #token) == token .. '"' -- as in _owned.lua
if mine then
  local kind = string.match(value, '^,"holder":{"kind":"([^"]*)"', 12 + #token)
  if kind then -- as count_end in _counts.lua has it, for what nearly always comes
    local root = string.sub(KEYS[2], 1, -6)
    local name, counts = string.sub(key, #root + 1), root .. 'counts:now'
    local open = call('DEL', key, root .. 'open:' .. name) == 2
    local at = tonumber(string.match(value, '"at":(%d+),', -96)) or 0
    -- ms, by what _counts.lua says of PTTL; less than 0, or above an hour, if that or the grant was in another hour
    local held = at - call('PTTL', counts) - 2 * (at % 3600000)
    local bucket = held <= 5 and 0 or held <= 25 and 1 or held <= 100 and 2 or held < 500 and 3
    local n, event, by
    if open and bucket and held >= 0 then
      event, by = 'done:' .. bucket, string.format('1%012d', held)
      n = redis.pcall('HINCRBY', counts, event .. '|' .. kind, by)
    end
    if type(n) ~= 'number' or n < 1999999999999 or n >= 1e17 then
      -- use: clock counts
      local now = clock()
      count_at(KEYS[2], now)
      if n then looked(n, event, kind, by) else count_end(name, value, 'released', now, open or close(name)) end
    end
  else
    call('DEL', key)
  end
  if entry == '' then
    head = call('ZPOPMIN', KEYS[4])
    if not head[1] then -- nobody waits
      call('ZREM', KEYS[2], key)
      return 1
    end
  end
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
