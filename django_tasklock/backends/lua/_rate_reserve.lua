-- Booking; with change and first_slot.

local function as_booked(slot, edition, in_line)
  local wait = time_until(slot)
  return {1, slot, wait, edition, get('off'), time + wait, in_line and 1 or 0}
end

local function put_in_line(slot, units)
  if redis.call('ZCARD', LINE) == 0 then renew = true end
  redis.call('ZADD', LINE, text(slot), text(units) .. ':' .. text(slot))
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
  adjust(share)
end

-- Book a slot after all others, in one rate.
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

-- Book a slot after all others.
local function add(slot, units)
  set('last', slot)
  for _, rate in ipairs(rates) do add_to_rate(rate, slot, units) end
end

-- Whether a slot is later than the caller waits.
local function is_too_late(slot, max_wait)
  local wait = time_until(slot)
  return wait > max_wait and wait >= TICK
end

local function reserve(cost, max_wait, spaced)
  raise_lowered_limit()
  local free, edition
  if redis.call('EXISTS', FREE, LINE) > 0 then
    -- use: rate_slots
    remove_unused()
    free = find_free_slot(cost)
    if free and not is_too_late(free[2], max_wait) then edition = take_free_slot(free, cost) end
  end
  local slot = free and free[2] or first_slot(cost, spaced)
  if is_too_late(slot, max_wait) then
    set('refused', get('refused') + 1)
    return {0, time_until(slot)}
  end
  if not free then
    edition = get('epoch') + get('serial')
    add(slot, cost)
  end
  if get('share') < FULL_SHARE then set('spent', get('spent') + cost) end
  local in_line = time_until(slot) > OPENS_BEFORE
  if in_line then put_in_line(slot, cost) end
  return as_booked(slot, edition, in_line)
end
