-- Some locks, from one of the indexes, by rank; what an index has wrong is put right where it is met.
-- KEYS: 1 index by expiry, 2 index by acquisition, 3 index by the end of the timeout
-- ARGV: 1 'live', 'expiring', 'unending' or 'lapsed', 2 number of the index, 3 'down' or '', 4 offset, 5 limit,
--       6 key prefix, 7 queue prefix, 8 ms left below which a lock is expiring, 9 locks to look at, at most,
--       10 text in the name, 11 'waiting' or '', 12... texts in the value
-- Reply: {now ms, how many there are of that kind, offset to go on at (-1: no more),
--         key, ms left (-1: no expiry), value or nil, waiting, score in the index, key, ...}
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

-- Milliseconds left of a lock, and whether it belongs where it was found. What was done to it by hand puts it
-- elsewhere in the index by expiry: to where this reading has been, or is still to come.
local function judge(key, score, value)
  if not value then
    if which == 'lapsed' then return score - now, true end
    local expiry = tonumber(redis.call('ZSCORE', KEYS[1], key) or math.huge)
    if expiry > now then redis.call('ZREM', KEYS[1], key) end -- deleted by hand or evicted, not lapsed
    redis.call('ZREM', KEYS[2], key)
    redis.call('ZREM', KEYS[3], key)
    return 0, false
  end
  local left = redis.call('PTTL', key)
  if index ~= KEYS[1] then
    if left < 0 then redis.call('ZADD', KEYS[1], '+inf', key) end -- PERSIST by hand: it is counted as one from now on
    return left, true
  end
  local ends = left < 0 and math.huge or now + left
  if ends == score or math.abs(ends - score) < 1000 and ends > now and which ~= 'lapsed' then
    return left < 0 and left or score - now, true -- as indexed, to the millisecond: who reads page by page compares
  end
  redis.call('ZADD', KEYS[1], left < 0 and '+inf' or ends, key)
  local still = which == 'live' or which == 'expiring' and ends <= now + tonumber(ARGV[8])
  return left, still and ends > now and (ends > score) == down
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

local reply, found, looked, healed = {now, 0, -1}, 0, 0, 0
while true do
  local first, size = 0, redis.call('ZCOUNT', index, low, high)
  if low ~= '-inf' then
    first = redis.call('ZCOUNT', index, '-inf', low == '+inf' and '(+inf' or (string.gsub(low, '^%(', '')))
  end
  if found >= limit or looked >= most or healed >= 5000 or offset >= size then
    if offset < size then reply[3] = offset end
    reply[2] = size
    break
  end
  local count = math.min(500, size - offset, math.max(most - looked, 50))
  local start = first + offset
  if down then start = first + size - offset - count end
  local page = redis.call('ZRANGE', index, start, start + count - 1, 'WITHSCORES')
  local from, to, step = 1, #page - 1, 2
  if down then from, to, step = #page - 1, 1, -2 end
  for i = from, to, step do
    if found >= limit then break end
    local key, value = page[i], redis.pcall('GET', page[i])
    if type(value) == 'table' then value = '' end -- not a text: not our value, and no reason to show nothing
    local left, belongs = judge(key, tonumber(page[i + 1]), value)
    if belongs then
      offset, looked = offset + 1, looked + 1
      local waiting = redis.pcall('ZCARD', ARGV[7] .. string.sub(key, #ARGV[6] + 1))
      if type(waiting) == 'table' then waiting = 0 end
      if wanted(key, value, waiting) then
        found = found + 1
        local at = #reply
        reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4] = key, left, clipped(value), waiting
        reply[at + 5] = math.max(0, math.min(tonumber(page[i + 1]), 253370764800000))
      end
    else
      healed = healed + 1
    end
  end
end
if which == 'live' then -- the other indexes have lapsed locks until they are met
  reply[2] = redis.call('ZCOUNT', KEYS[1], '(' .. string.format('%.0f', now), '+inf')
  if healed >= 5000 and offset >= reply[2] then reply[3] = -1 end
end
return reply
