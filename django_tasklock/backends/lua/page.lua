-- Some locks, from one of the indexes, by rank; what an index has wrong is put right where it is met.
-- KEYS: 1 index by expiry, 2 index by acquisition, 3 index by the end of the timeout
-- ARGV: 1 'live', 'expiring', 'unending' or 'lapsed', 2 number of the index, 3 'down' or '', 4 offset, 5 limit,
--       6 key prefix, 7 queue prefix, 8 ms left below which a lock is expiring, 9 locks to look at, at most,
--       10 text in the name, 11 'waiting' or '', 12... texts in the value
-- Reply: {now ms, how many there are of that kind, offset to go on at (-1: no more),
--         key, ms left (-1: no expiry), value or nil, waiting, key, ...}
local now = clock()
local which, index, down = ARGV[1], KEYS[tonumber(ARGV[2])], ARGV[3] ~= ''
local offset, limit, most = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[9])
local low, high = '-inf', '+inf'
if index == KEYS[1] then
  low = '(' .. string.format('%.0f', now)
  if which == 'expiring' then high = string.format('%.0f', now + tonumber(ARGV[8])) end
  if which == 'unending' then low = '+inf' end
  if which == 'lapsed' then low, high = '-inf', string.format('%.0f', now) end
end

-- Milliseconds left of a lock as its index has it, and whether it belongs where it was found.
local function judge(key, score, value)
  if which == 'lapsed' then
    if not value then return score - now, true end
    local left = redis.call('PTTL', key) -- by hand: given another time, or all the time
    redis.call('ZADD', KEYS[1], left < 0 and '+inf' or now + left, key)
    return left, false
  end
  if value then
    if index == KEYS[1] and score ~= math.huge then return score - now, true end
    local left = redis.call('PTTL', key)
    if index ~= KEYS[1] or left < 0 then return left, true end
    redis.call('ZADD', KEYS[1], now + left, key) -- given an expiry by hand
    return left, which == 'live'
  end
  local expiry = tonumber(redis.call('ZSCORE', KEYS[1], key) or math.huge)
  if expiry > now then redis.call('ZREM', KEYS[1], key) end -- deleted by hand or evicted, not lapsed
  redis.call('ZREM', KEYS[2], key)
  redis.call('ZREM', KEYS[3], key)
  return 0, false
end

local function wanted(key, value, waiting)
  if ARGV[11] ~= '' and waiting == 0 then return false end
  if ARGV[10] ~= '' and not string.find(string.lower(string.sub(key, #ARGV[6] + 1)), ARGV[10], 1, true) then
    return false
  end
  for i = 12, #ARGV do
    if not string.find(value or '', ARGV[i], 1, true) then return false end
  end
  return true
end

local reply, found, looked = {now, 0, -1}, 0, 0
local more = true
while more do
  local first = low == '-inf' and 0 or redis.call('ZCOUNT', index, '-inf', (string.gsub(low, '^%(', '')))
  if low == '+inf' then first = redis.call('ZCOUNT', index, '-inf', '(+inf') end
  local total = redis.call('ZCOUNT', index, low, high)
  local size = math.min(500, total - offset, most - looked)
  reply[2] = total
  if size <= 0 or found >= limit then
    if offset < total then reply[3] = offset end
    break
  end
  local start = first + offset
  if down then start = first + total - offset - size end
  local page = redis.call('ZRANGE', index, start, start + size - 1, 'WITHSCORES')
  local from, to, step = 1, #page - 1, 2
  if down then from, to, step = #page - 1, 1, -2 end
  more = #page > 0
  for i = from, to, step do
    if found >= limit then break end
    local key, value = page[i], redis.pcall('GET', page[i])
    if type(value) == 'table' then value = '' end -- not a text: not our value, and no reason to show nothing
    local left, belongs = judge(key, tonumber(page[i + 1]), value)
    looked = looked + 1
    if belongs then
      offset = offset + 1
      local waiting = redis.call('ZCARD', ARGV[7] .. string.sub(key, #ARGV[6] + 1))
      if wanted(key, value, waiting) then
        found = found + 1
        local at = #reply
        reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4] = key, left, value, waiting
      end
    end
  end
end
return reply
