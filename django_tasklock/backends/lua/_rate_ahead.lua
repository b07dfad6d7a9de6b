-- Bookings for later than any caller goes without asking again; with first_slot.
local ASKS_WITHIN = 2000000

-- Drop them: who has booked them books again when it asks.
local function drop_ahead()
  local since, last = now() + ASKS_WITHIN, now()
  for _, rate in ipairs(rates) do
    local length = redis.call('LLEN', rate.ring) / 3
    local low, high = 0, length
    while low < high do
      local middle = math.floor((low + high) / 2)
      if tonumber(redis.call('LINDEX', rate.ring, 3 * middle)) > since then low = middle + 1 else high = middle end
    end
    local counting = math.min(low, length - get(rate.aside))
    local dropped = counting > 0 and redis.call('LRANGE', rate.ring, 0, 3 * counting - 1) or {}
    for i = 2, #dropped, 3 do set(rate.counted, get(rate.counted) - dropped[i]) end
    set(rate.aside, math.min(get(rate.aside), length - low))
    if low > 0 then redis.call('LTRIM', rate.ring, 3 * low, -1) end
    count_again(rate)
    last = math.max(last, tonumber(redis.call('LINDEX', rate.ring, 0) or 0))
  end
  for _, key in ipairs({FREE, LINE}) do redis.call('ZREMRANGEBYSCORE', key, '(' .. text(since), '+inf') end
  set('last', last)
  set('serial', get('serial') + 1) -- who had a slot does not own it if it is booked anew
end

-- Whether the last caller had a lower limit, or other windows.
local function is_raised()
  if not stored_terms or stored_terms == terms then return false end
  local before = {}
  for limit, window in string.gmatch(string.match(stored_terms, '^%d+ %d+(.*)$') or '', ' (%d+) (%d+) %d+') do
    before[tonumber(window)] = tonumber(limit)
  end
  for _, rate in ipairs(rates) do
    if rate.limit > (before[rate.window] or 0) then return true end
  end
  return false
end

-- After a raise, let callers book again, if they would go sooner.
local function follow_raise(cost)
  if is_raised() and first_slot(cost) == get('last') + 1 and get('last') > now() + ASKS_WITHIN then drop_ahead() end
end
