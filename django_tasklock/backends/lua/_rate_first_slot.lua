-- The first slot that can be booked.

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

local function first_slot(units, spaced)
  local bound, strictest = -1, nil
  for _, rate in ipairs(rates) do
    local at = earliest_time(rate, units)
    if at > bound then bound, strictest = at, rate end
  end
  local slot = math.max(now(), bound, get('last') + 1)
  if spaced == 1 and slot > now() + 2 * TICK then
    local interval = math.ceil((strictest.window + strictest.margin) / limit_of(strictest))
    slot = math.max(slot, get('last') + units * interval)
  end
  return slot
end
