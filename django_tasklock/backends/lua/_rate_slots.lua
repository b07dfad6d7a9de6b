-- Bookings in the rings by their slot, slots given back, and the line.

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

-- The edition of a slot that is booked in a rate, and its units; 0: it is not.
local function owner_of(rate, slot)
  local found = find(rate, slot)
  if not found then return 0, 0 end
  local booked = redis.call('LRANGE', rate.ring, found + 1, found + 2)
  return get('epoch') + booked[2], tonumber(booked[1])
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

local function remove_units(slot, units)
  for _, rate in ipairs(rates) do correct_units(rate, slot, -units) end
end

local MAX_EXAMINED = 16

local function member(slot, units) return text(units) .. ':' .. text(slot) end

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

local function in_all_rates(slot)
  for _, rate in ipairs(rates) do
    if not find(rate, slot) then return false end
  end
  return true
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

-- Undo bookings that were never used: slots of the line or given back whose time passed without a caller.
local function remove_unused()
  for key, at in pairs({[LINE] = now() - margin, [FREE] = now()}) do
    for _, one in ipairs(range(key, '-inf', '(' .. text(at))) do
      local number, slot = parse(one)
      redis.call('ZREM', key, one)
      remove_units(slot, number)
    end
  end
end
