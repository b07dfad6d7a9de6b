-- A page of locks, by rank; wrong entries of the index that are met are repaired.
-- The index is by expiry. By age, or by time left of the timeout, live locks are sorted a part at a time: the first
-- `PART` entries of the index, then the next.
-- KEYS: 1 index by expiry
-- ARGV: 1 'live', 'expiring', 'no_expiry' or 'orphaned', 2 'expiry'; of live ones also 'age', 'left', or 'index': by
--       expiry, with the time left that the index has; 3 'down' or '',
--       4 offset, 5 limit, 6 key prefix, 7 queue prefix, 8 ms left below which a lock is expiring,
--       9 locks to examine at most, 10 locks in a part, or with 'index' the least length of a long list,
--       11 text in the name, 12 'waiting' or '', 13... texts in the value
-- Reply: {now ms, number of locks in that state, offset at which to continue (-1: no more),
--         ms left (-1: no expiry) of each, number of waiters of each, {key, ...}, {value or nil, ...}}
--        or, with 'index', if no entry needs repair and no lock has waiters: '' and '' for these two, and
--        {{key, score, ...}, ...}, {{value, ...}, ...}: a PTTL of each lock takes longer than all the rest
-- use: values clock
local now = clock()
if ARGV[2] == 'index' then
  local call, offset, prefix, queue, sub = redis.call, tonumber(ARGV[4]), #ARGV[6] + 1, ARGV[7], string.sub
  local first = call('ZCOUNT', KEYS[1], '-inf', now)
  local size = call('ZCARD', KEYS[1]) - first
  local last = math.min(offset + ARGV[5], size)
  local found, values, sound = {}, {}, last - offset >= tonumber(ARGV[10])
  for start = offset, sound and last - 1 or -1, 1000 do
    local flat = call('ZRANGE', KEYS[1], first + start, first + math.min(start + 1000, last) - 1, 'WITHSCORES')
    local keys, queues = {}, {}
    for i = 1, #flat / 2 do
      local key = flat[2 * i - 1]
      keys[i], queues[i] = key, queue .. sub(key, prefix)
    end
    sound = flat[#flat] ~= 'inf' and call('EXISTS', unpack(queues)) == 0
    local part = call('MGET', unpack(keys))
    for i = 1, #keys do
      local value = part[i]
      if not value or #value > 16384 then sound = false end
    end
    found[#found + 1], values[#values + 1] = flat, part
    if not sound then break end
  end
  if sound then return {now, size, last < size and last or -1, '', '', found, values} end
end
local which, order, down = ARGV[1], ARGV[2], ARGV[3] ~= ''
local offset, limit, most, PART = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[9]), tonumber(ARGV[10])
local text, waited, looks = ARGV[11], ARGV[12] ~= '', ARGV[11] ~= '' or ARGV[12] ~= '' or #ARGV > 12
local AT_ONCE, HEALS = 500, 5000 -- keys in one command; repairs by one script
local low, high = '(' .. now, '+inf'
if which == 'expiring' then high = now + ARGV[8] end
if which == 'no_expiry' then low = '+inf' end
if which == 'orphaned' then low, high = '-inf', now end

local lefts, waits, keys, values = {}, {}, {}, {}
local looked, healed = 0, 0

-- The values of some locks: false for a missing key, '' for one of another type.
local function read(page)
  local found = redis.call('MGET', unpack(page))
  for i, key in ipairs(page) do
    if not found[i] then
      local value = redis.pcall('GET', key)
      found[i] = type(value) == 'table' and '' or value -- of another type: foreign, but shown
    end
  end
  return found
end

local function waiting(key)
  local number = redis.pcall('ZCARD', ARGV[7] .. string.sub(key, #ARGV[6] + 1))
  return type(number) == 'number' and number or 0
end

-- Whether none of these locks has waiters.
local function no_waiters(page)
  local queues = {}
  for i, key in ipairs(page) do queues[i] = ARGV[7] .. string.sub(key, #ARGV[6] + 1) end
  return redis.call('EXISTS', unpack(queues)) == 0
end

local function matches(key, value, number)
  if waited and number == 0 then return false end
  if text ~= '' and not string.find(string.lower(string.sub(key, #ARGV[6] + 1)), text, 1, true) then return false end
  for i = 13, #ARGV do
    if not string.find(value or '', ARGV[i], 1, true) then return false end
  end
  return true
end

-- Add a lock to the page, if it matches the filters.
local function show(key, value, left, number)
  offset, looked = offset + 1, looked + 1
  if looks and not matches(key, value, number) then return end
  local at = #keys + 1
  lefts[at], waits[at], keys[at], values[at] = left, number, key, clipped(value)
end

-- The ms left of a lock, and whether to show it here. If it was changed by hand, its index entry is corrected, and moves
-- to a part that was read already, or to one that is still to be read.
local function check_entry(key, score, value)
  if not value then
    if which == 'orphaned' then return score - now, true end
    redis.call('ZREM', KEYS[1], key) -- deleted by hand or evicted, not lapsed
    return 0, false
  end
  local left = redis.call('PTTL', key)
  local ends = left < 0 and math.huge or now + left
  if ends == score or math.abs(ends - score) < 1000 and ends > now and which ~= 'orphaned' then
    return left < 0 and left or score - now, true -- exactly as indexed: readers of several pages compare them
  end
  redis.call('ZADD', KEYS[1], left < 0 and '+inf' or ends, key)
  local still = which == 'live' or which == 'expiring' and ends <= now + ARGV[8]
  return left, still and ends > now and (ends > score) == down
end

-- The number of index entries before those of this state, and the number of those.
local function bounds()
  local first = 0
  if low ~= '-inf' then first = redis.call('ZCOUNT', KEYS[1], '-inf', low == '+inf' and '(+inf' or now) end
  return first, redis.call('ZCOUNT', KEYS[1], low, high)
end

-- In the order of the index. Reply: how many there are.
local function by_expiry()
  while true do
    local first, size = bounds()
    if #keys >= limit or looked >= most or healed >= HEALS or offset >= size then return size end
    local count = math.min(AT_ONCE, size - offset, math.max(most - looked, 50))
    local start = first + offset
    if down then start = first + size - offset - count end
    local flat = redis.call('ZRANGE', KEYS[1], start, start + count - 1, 'WITHSCORES')
    local page = {}
    for i = 1, #flat, 2 do page[#page + 1] = flat[i] end
    local found, alone = read(page), no_waiters(page)
    local from, to, step = 1, #page, 1
    if down then from, to, step = #page, 1, -1 end
    for i = from, to, step do
      if #keys >= limit then break end
      local left, belongs = check_entry(page[i], tonumber(flat[2 * i]), found[i])
      if belongs then
        show(page[i], found[i], left, alone and 0 or waiting(page[i]))
      else
        healed = healed + 1
      end
    end
  end
end

-- The locks of a part of the index, beginning at a rank of the live ones. Reply: keys, values, whether all were read.
local function part(start)
  local first = bounds()
  local members, found = {}, {}
  while #members < PART do
    local from = first + start + #members
    local page = redis.call('ZRANGE', KEYS[1], from, from + math.min(AT_ONCE, PART - #members) - 1)
    if not page[1] then break end
    local gone = {}
    for i, value in ipairs(read(page)) do
      if value then
        members[#members + 1], found[#found + 1] = page[i], value
      else
        gone[#gone + 1] = page[i]
      end
    end
    if gone[1] then redis.call('ZREM', KEYS[1], unpack(gone)) end
    healed = healed + #gone
    if healed >= HEALS then return members, found, false end
  end
  return members, found, true
end

-- Live locks by age, or by time left of the timeout. Reply: how many there are.
local function by_value()
  local start = offset - offset % PART
  local members, found, whole = part(start)
  if whole then
    local times, least, greatest = {}, math.huge, -math.huge -- microseconds: a fence is more exact than a time
    for i, value in ipairs(found) do
      local at, fence, till = string.match(string.sub(value, -128), '"at":(%d+),[^{}]*"fence":(%d+),"until":(%d+)}$')
      local time
      if order == 'left' then
        time = (till or now + math.max(0, redis.call('PTTL', members[i]))) * 1000 - now * 1000
      else
        local beyond = at and fence - at * 1000 or 0
        time = (now - (at or now)) * 1000 - (beyond > 0 and beyond < 1000 and beyond or 0)
      end
      times[i], least, greatest = time, math.min(least, time), math.max(greatest, time)
    end
    -- Plain numbers are compared in C: the time in the upper bits, the position in the lower 13. A double has 53 bits.
    local ranks, unit = {}, greatest - least < 2 ^ 39 and 1 or 1000
    for i, time in ipairs(times) do ranks[i] = math.min(2 ^ 39, math.floor((time - least) / unit)) * 8192 + i end
    table.sort(ranks)
    while #keys < limit and looked < most and offset - start < #ranks do
      local place = offset - start
      local i = ranks[down and #ranks - place or place + 1] % 8192
      local left = redis.call('PTTL', members[i])
      if left < 0 then redis.call('ZADD', KEYS[1], '+inf', members[i]) end -- PERSIST by hand: correct the index
      show(members[i], found[i], left, waiting(members[i]))
    end
  end
  local _, size = bounds()
  return size
end

local size
if order == 'expiry' or order == 'index' then size = by_expiry() else size = by_value() end
return {
  now, size, offset < size and offset or -1,
  table.concat(lefts, ' '), table.concat(waits, ' '), keys, values,
}
