-- The bookings of one rate limiter. backends/ledger has the same in Python, and says why no window has more calls than
-- the limit; a property test compares the two.
--
-- A limiter's clock is the server's, minus the time it was stopped; slots are times on it. Microseconds.
-- KEYS: 1 meta, 2 slots given back, 3 the line, 4 index of limiters, 5... one ring per rate
-- ARGV: 1 verb, 2 name, 3 the terms as Terms.text(), 4... arguments of the verb, numbers
-- Reply: {1, slot, wait, edition, off, time, whether it is in the line}; refused: {0, wait}; a list of
--   these (reserve_many); {how long it is stopped from now, share} (penalize); {time, free, next, tail, paused, share,
--   refused, then for each rate: limit, used, ahead} (usage); 1, or 0 if nothing was changed
--
-- meta (hash): epoch (when the book was begun), serial (the last serial number), off (for how long the clock was
--   stopped), until (the clock is stopped until then), last (the last slot), share (of the limit, in millionths),
--   changed (when the share was), spent (units since), refused, idx (when the index was updated), terms (of the last
--   call, for readers); and by window: n:<w> the units in the ring that count, x:<w> the bookings at its end that are
--   set aside, because limit units came later.
-- ring (list): slot, units, serial number of its owner, slot, units, serial number, ..., the newest first.
-- slots given back, and the line (sorted sets): "units:slot", scored by slot.

local clock = redis.call('TIME')
local time = clock[1] * 1000000 + clock[2]

-- A server whose memory is full aborts a script at its first write, unless that is a command that needs no memory, as
-- this one, which does nothing. A limiter stores no more than the calls it lets through, and all its keys expire.
redis.pcall('ZREM', KEYS[4], '')

local FULL_SHARE, TICK, OPENS_BEFORE, RECORD_TIME_EVERY = 1000000, 1000, 1000000, 1000000
local MAX_EXAMINED, SHORT_NOTICE = 16, 250000
local FREE, LINE = KEYS[2], KEYS[3]

local function text(number) return string.format('%.0f', number) end -- tostring() has 14 digits

local rates, margin, longest_window, adaptation_interval = {}, math.huge, 0, math.huge
local min_share, listed = string.match(ARGV[3], '^(%d+) %d+ (.*)$')
min_share = tonumber(min_share)
for limit, window, its_margin in string.gmatch(listed, '(%d+) (%d+) (%d+)') do
  local rate = {limit = tonumber(limit), window = tonumber(window), margin = tonumber(its_margin), ring = KEYS[5 + #rates]}
  rate.counted, rate.aside = 'n:' .. window, 'x:' .. window
  margin, longest_window = math.min(margin, rate.margin), math.max(longest_window, rate.window + rate.margin)
  adaptation_interval = math.min(adaptation_interval, math.max(1000000, rate.window))
  rates[#rates + 1] = rate
end

local meta, dirty, stored_terms, renew = {}, {}, nil, false -- renew: all expiries, as a new key has none

local function get(key) return meta[key] or 0 end

local function set(key, value)
  if meta[key] ~= value then meta[key], dirty[key] = value, true end
end

local function begin_edition(edition)
  if ARGV[1] ~= 'usage' then redis.call('DEL', FREE, LINE, unpack(KEYS, 5)) end
  meta, dirty, stored_terms = {}, {}, nil
  set('epoch', edition)
  set('share', FULL_SHARE)
  set('idx', time)
end

local function now() return math.max(time, get('until')) - get('off') end

local function time_until(slot)
  if get('until') > time then slot = math.max(slot, now()) end
  return slot + get('off') - time
end

-- One rate

local function limit_of(rate) return math.max(1, math.floor(rate.limit * get('share') / FULL_SHARE)) end

local function interval_of(rate) return math.ceil((rate.window + rate.margin) / limit_of(rate)) end

-- The index of a booking in the ring, or nil. LPOS would compare each element of a ring that may have ten thousand.
-- Bookings ahead are about as far from each other, so each second look is where it would be then, the others half way.
local function find(rate, slot)
  local low, high, newer, halve = 0, redis.call('LLEN', rate.ring) / 3 - 1, get('last'), false
  local older = tonumber(redis.call('LINDEX', rate.ring, -3) or 0)
  while low <= high and slot <= newer and slot >= older do
    local part = halve and 0.5 or newer > older and (newer - slot) / (newer - older) or 0
    local middle = low + math.floor((high - low) * part + 0.5)
    local at = tonumber(redis.call('LINDEX', rate.ring, 3 * middle))
    if at == slot then return 3 * middle end
    if at > slot then low, newer = middle + 1, at else high, older = middle - 1, at end
    halve = not halve
  end
end

-- Count bookings again that were set aside, if later ones were undone, or this caller has a greater limit.
local function count_again(rate)
  local total, aside = get(rate.counted), get(rate.aside)
  while aside > 0 and total < rate.limit do
    total, aside = total + (redis.call('LINDEX', rate.ring, -3 * aside + 1) or 0), aside - 1
    set(rate.counted, total)
    set(rate.aside, aside)
  end
end

-- The first time at which the rate has room for so many units.
local function earliest_time(rate, units)
  count_again(rate)
  local at, total, limit, read = 0, get(rate.counted), limit_of(rate), get(rate.aside)
  while total + units > limit and total > 0 do
    local number = math.min(64, math.max(1, total + units - limit))
    local ring = redis.call('LRANGE', rate.ring, -3 * (read + number), -3 * read - 1)
    if not ring[1] then break end -- it was deleted by hand
    for i = #ring - 2, 1, -3 do
      if total + units <= limit or total <= 0 then break end
      at, total, read = tonumber(ring[i]), total - tonumber(ring[i + 1]), read + 1
    end
  end
  return at > 0 and at + rate.window + rate.margin or 0
end

local function add_to_rate(rate, slot, units)
  local length = redis.call('LPUSH', rate.ring, text(get('serial')), text(units), text(slot)) / 3
  local total, aside = get(rate.counted) + units, get(rate.aside)
  if length == 1 then total, aside = units, 0 end
  while aside < length - 1 and total >= rate.limit do -- set aside what later calls need not read
    local oldest = tonumber(redis.call('LINDEX', rate.ring, -3 * aside - 2))
    if total - oldest < rate.limit then break end
    total, aside = total - oldest, aside + 1
  end
  while aside > 0 and tonumber(redis.call('LINDEX', rate.ring, -3)) <= now() - rate.window - rate.margin do
    redis.call('LTRIM', rate.ring, 0, -4)
    aside = aside - 1
  end
  set(rate.counted, total)
  set(rate.aside, aside)
end

-- Correct the units of a booking. More units of one that is set aside are those of the newest.
local function correct_units(rate, slot, more)
  local found = find(rate, slot)
  if not found then return end
  local aside = redis.call('LLEN', rate.ring) - found <= 3 * get(rate.aside)
  if aside and more > 0 then found, aside = 0, false end
  local units = tonumber(redis.call('LINDEX', rate.ring, found + 1))
  more = math.max(more, -units)
  redis.call('LSET', rate.ring, found + 1, text(units + more))
  if not aside then set(rate.counted, get(rate.counted) + more) end
end

-- All rates

local function in_all_rates(slot)
  for _, rate in ipairs(rates) do
    if not find(rate, slot) then return false end
  end
  return true
end

-- The edition of a slot that is booked in a rate, and its units; 0: it is not.
local function owner_of(rate, slot)
  local found = find(rate, slot)
  if not found then return 0, 0 end
  local booked = redis.call('LRANGE', rate.ring, found + 1, found + 2)
  return get('epoch') + booked[2], tonumber(booked[1])
end

-- Whether the caller with this edition has the slot, and some units of it.
local function is_owned(slot, edition)
  for _, rate in ipairs(rates) do
    local owner, units = owner_of(rate, slot)
    if owner == edition and units > 0 then return true end
  end
end

-- Give a slot a new serial number. Reply: whether all rates have the slot.
local function change_owner(slot)
  local found = {}
  for i, rate in ipairs(rates) do
    found[i] = find(rate, slot)
    if not found[i] then return false end
  end
  set('serial', get('serial') + 1)
  for i, rate in ipairs(rates) do redis.call('LSET', rate.ring, found[i] + 2, text(get('serial'))) end
  return true
end

local function remove_units(slot, units)
  for _, rate in ipairs(rates) do correct_units(rate, slot, -units) end
end

local function first_slot(units, spaced)
  local bound, strictest = -1, nil
  for _, rate in ipairs(rates) do
    local at = earliest_time(rate, units)
    if at > bound then bound, strictest = at, rate end
  end
  local slot = math.max(now(), bound, get('last') + 1)
  if spaced == 1 and slot > now() + 2 * TICK then
    slot = math.max(slot, get('last') + units * interval_of(strictest))
  end
  return slot
end

-- Book a slot after all others.
local function add(slot, units)
  set('last', slot)
  for _, rate in ipairs(rates) do add_to_rate(rate, slot, units) end
end

-- Slots given back, and the line

local function member(slot, units) return text(units) .. ':' .. text(slot) end

local function put(key, slot, units)
  if redis.call('ZCARD', key) == 0 then renew = true end
  redis.call('ZADD', key, text(slot), member(slot, units))
end

local function remove(key, slot, units) return redis.call('ZREM', key, member(slot, units)) == 1 end

-- The first members between two times
local function range(key, since, latest)
  return redis.call('ZRANGEBYSCORE', key, since, latest, 'LIMIT', 0, MAX_EXAMINED)
end

-- The units and the slot of a member
local function parse(one)
  local units, slot = string.match(one, '^(%d+):(%d+)$')
  return tonumber(units), tonumber(slot)
end

-- The first slot given back that has enough units, of the first few: {units, slot}, or nil.
local function find_free_slot(units)
  for _, one in ipairs(range(FREE, text(now()), '+inf')) do
    local number, slot = parse(one)
    if number >= units and in_all_rates(slot) then return {number, slot} end
  end
end

-- Book a slot that was given back. Units that it has above these are not used. Reply: its edition.
local function take_free_slot(found, units)
  remove(FREE, found[2], found[1])
  if found[1] > units then remove_units(found[2], found[1] - units) end
  return (owner_of(rates[1], found[2]))
end

local function undo_last(slot, units)
  local last = now()
  for _, rate in ipairs(rates) do
    if redis.call('LINDEX', rate.ring, 0) == text(slot) then
      redis.call('LTRIM', rate.ring, 3, -1)
      set(rate.counted, get(rate.counted) - units)
      count_again(rate)
    end
    last = math.max(last, tonumber(redis.call('LINDEX', rate.ring, 0) or 0))
  end
  set('last', last)
end

-- Give back a future slot, so that the next caller can book it; undo the last ones, if nobody is behind.
local function give_back(slot, units)
  if not change_owner(slot) then return remove_units(slot, units) end
  put(FREE, slot, units)
  while true do
    local top = redis.call('ZREVRANGE', FREE, 0, 0)[1]
    local number, last = parse(top or '0:0')
    if last ~= get('last') then return end
    redis.call('ZREM', FREE, top)
    undo_last(last, number)
  end
end

-- Take the first slot of the line that has as many units. Reply: the slot, or nil.
local function take_from_line(since, latest, units)
  for _, one in ipairs(range(LINE, text(since), text(latest))) do
    local number, slot = parse(one)
    if number == units and change_owner(slot) then
      redis.call('ZREM', LINE, one)
      return slot
    end
  end
end

-- Undo bookings that were never used: slots of the line or given back whose time passed without a caller.
local function remove_unused()
  if redis.call('EXISTS', FREE, LINE) == 0 then return end
  for key, at in pairs({[LINE] = now() - margin, [FREE] = now()}) do
    for _, one in ipairs(range(key, '-inf', '(' .. text(at))) do
      local number, slot = parse(one)
      redis.call('ZREM', key, one)
      remove_units(slot, number)
    end
  end
end

-- The verbs

local verbs = {}

local function as_booked(slot, edition, in_line)
  local wait = time_until(slot)
  return {1, slot, wait, edition, get('off'), time + wait, in_line and 1 or 0}
end

function verbs.adjust(share)
  set('share', share)
  set('changed', time)
  set('spent', 0)
  return 1
end

local function raise_lowered_limit()
  local share = get('share')
  if min_share == 0 or share >= FULL_SHARE or time < get('changed') + adaptation_interval then return end
  local rate = rates[1]
  for _, other in ipairs(rates) do
    if other.window < rate.window then rate = other end
  end
  if get('spent') * 2 >= limit_of(rate) then
    share = math.min(FULL_SHARE, share + math.ceil(FULL_SHARE / rate.limit))
  end
  verbs.adjust(share)
end

function verbs.reserve(cost, max_wait, spaced)
  raise_lowered_limit()
  remove_unused()
  local free = find_free_slot(cost)
  local slot = free and free[2] or first_slot(cost, spaced)
  local wait = time_until(slot)
  if wait > max_wait and wait >= TICK then
    set('refused', get('refused') + 1)
    return {0, wait}
  end
  local edition = get('epoch') + get('serial')
  if free then edition = take_free_slot(free, cost) else add(slot, cost) end
  if get('share') < FULL_SHARE then set('spent', get('spent') + cost) end
  if wait > OPENS_BEFORE then put(LINE, slot, cost) end
  return as_booked(slot, edition, wait > OPENS_BEFORE)
end

function verbs.reserve_many(cost, max_wait, number)
  local replies = {}
  repeat replies[#replies + 1] = verbs.reserve(cost, max_wait, 1) until #replies == number or replies[#replies][1] == 0
  return replies
end

function verbs.resume(cost, slot, edition, max_wait, spaced)
  if edition < get('epoch') then return verbs.reserve(cost, max_wait, spaced) end
  remove_unused()
  local owned, opens = is_owned(slot, edition), slot - OPENS_BEFORE <= now()
  local in_line = owned and redis.call('ZSCORE', LINE, member(slot, cost))
  if in_line and not opens then
    local free = find_free_slot(cost)
    if free and free[2] < slot then
      remove(LINE, slot, cost)
      edition = take_free_slot(free, cost)
      give_back(slot, cost)
      slot = free[2]
      put(LINE, slot, cost)
    end
    return as_booked(slot, edition, true)
  end
  if owned and not in_line then
    if slot >= now() - margin then return as_booked(slot, edition) end
    remove_units(slot, cost)
  end
  -- Its own slot, or an earlier one of a caller that is late, but not at short notice; and one with less than half of
  -- its margin left would be missed before the reply arrives.
  local since = math.max(now() - math.floor(margin / 2), opens and math.min(slot, now() + SHORT_NOTICE) or slot)
  local taken = take_from_line(since, math.max(slot, now() + max_wait), cost)
  return taken and as_booked(taken, get('epoch') + get('serial')) or verbs.reserve(cost, max_wait, spaced)
end

function verbs.cancel(cost, slot, edition)
  if not is_owned(slot, edition) then return 0 end
  remove(LINE, slot, cost)
  if slot > now() then give_back(slot, cost) else remove_units(slot, cost) end
  return 1
end

function verbs.settle(cost, slot, edition, actual)
  local found = 0
  for _, rate in ipairs(rates) do
    if actual ~= cost and owner_of(rate, slot) == edition then
      correct_units(rate, slot, actual - cost)
      found = 1
    end
  end
  return found
end

function verbs.penalize(amount, absolute, max_length)
  local wanted = math.min(absolute == 1 and amount or time + amount, time + max_length)
  local before = math.max(time, get('until'))
  if wanted > before then
    set('off', get('off') + wanted - before)
    set('until', wanted)
  end
  if min_share > 0 and time >= get('changed') + adaptation_interval then
    verbs.adjust(math.max(min_share, math.floor(get('share') * 7 / 10)))
  end
  return {math.max(0, get('until') - time), get('share')}
end

function verbs.pause(length)
  set('off', get('off') + length - math.max(0, get('until') - time))
  set('until', time + length)
  return 1
end

function verbs.usage()
  local free = find_free_slot(1)
  local following = free and free[2] or first_slot(1)
  local reply = {time, redis.call('ZCOUNT', FREE, text(now()), '+inf'), math.max(0, time_until(following)),
    get('last') > 0 and math.max(0, time_until(get('last'))) or 0, math.max(0, get('until') - time), get('share'),
    get('refused')}
  for _, rate in ipairs(rates) do
    local ring, used, ahead = redis.call('LRANGE', rate.ring, 0, -1), 0, 0
    for i = 1, #ring, 3 do
      local slot, units = tonumber(ring[i]), tonumber(ring[i + 1])
      if slot > now() then
        ahead = ahead + units
      elseif slot > now() - rate.window then
        used = used + units
      end
    end
    for _, number in ipairs({limit_of(rate), used, ahead}) do reply[#reply + 1] = number end
  end
  return reply
end

function verbs.reset()
  begin_edition(math.max(get('epoch') + get('serial') + 1, time))
  return redis.call('DEL', KEYS[1])
end

-- Read the book, act, and write what was changed

local stored = redis.call('HGETALL', KEYS[1])
for i = 1, #stored, 2 do
  if stored[i] == 'terms' then stored_terms = stored[i + 1] else meta[stored[i]] = tonumber(stored[i + 1]) end
end
if not meta.epoch then begin_edition(time) end
local behind = get('idx') - time
if behind >= RECORD_TIME_EVERY then -- the server's clock was set back: the limiter's continues from where it was
  for _, key in ipairs({'off', 'until', 'changed'}) do set(key, get(key) - behind) end
end
if math.abs(behind) >= RECORD_TIME_EVERY then set('idx', time) end

local arguments = {}
for i = 4, #ARGV do arguments[#arguments + 1] = tonumber(ARGV[i]) end
local reply = verbs[ARGV[1]](unpack(arguments))
if ARGV[1] == 'usage' then return reply end

if dirty.idx then
  redis.call('ZADD', KEYS[4], text(time), ARGV[2])
  if time % 64 == 0 then redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', text(time - 2592000000000)) end
end
local fields = stored_terms == ARGV[3] and {} or {'terms', ARGV[3]}
for key in pairs(dirty) do
  fields[#fields + 1] = key
  fields[#fields + 1] = text(meta[key])
end
if fields[1] then redis.call('HSET', KEYS[1], unpack(fields)) end
-- The keys expire somewhat later than they have to, so that not each call sets that.
local left = math.ceil((math.max(get('last'), now()) + get('off') + longest_window - time) / 1000) + 1000
renew = renew or dirty.share or redis.call('PTTL', KEYS[1]) < left
for _, rate in ipairs(rates) do renew = renew or redis.call('PTTL', rate.ring) < left end
if renew then
  left = left + math.max(1000, math.floor(left / 4))
  for i = 2, #KEYS do
    if i ~= 4 then redis.call('PEXPIRE', KEYS[i], left) end
  end
  redis.call('PEXPIRE', KEYS[1], get('share') == FULL_SHARE and left or math.max(left, 86400000))
end
return reply
