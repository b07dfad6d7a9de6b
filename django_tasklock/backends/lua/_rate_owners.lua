-- Slots that change hands; with slots and first_slot.

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
  if redis.call('ZCARD', FREE) == 0 then renew = true end
  redis.call('ZADD', FREE, text(slot), member(slot, units))
  while true do
    local top = redis.call('ZREVRANGE', FREE, 0, 0)[1]
    local number, last = parse(top or '0:0')
    if last ~= get('last') then return end
    redis.call('ZREM', FREE, top)
    undo_last(last, number)
  end
end
