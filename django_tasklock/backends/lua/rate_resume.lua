-- The current state of a slot: ahead, due, or another one.
-- KEYS, ARGV: see _rates.lua; cost, slot, edition, longest wait, 1: at some distance from the others
-- Reply: as of rate_reserve.lua
-- use: rates rate_change rate_first_slot rate_ahead rate_slots rate_owners rate_reserve
local SHORT_NOTICE = 250000

local function resume(cost, slot, edition, max_wait, spaced)
  if edition < get('epoch') then return reserve(cost, max_wait, spaced) end
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
      put_in_line(slot, cost)
    end
    return as_booked(slot, edition, true)
  end
  if owned and not in_line then
    if slot >= now() - margin then return as_booked(slot, edition) end
    remove_units(slot, cost)
  end
  -- Its own slot, or an earlier one of a caller that is late, but not at short notice; and one with less than half of
  -- its margin left would be missed before the reply arrives.
  local usable = now() - math.floor(margin / 2)
  local wasted = slot < usable and owner_of(rates[1], slot) == edition
  local since = math.max(usable, opens and math.min(slot, now() + SHORT_NOTICE) or slot)
  for _, one in ipairs(range(LINE, text(since), text(math.max(slot, now() + max_wait)))) do
    local number, first = parse(one)
    if number == cost and change_owner(first) then
      redis.call('ZREM', LINE, one)
      local reply = as_booked(first, get('epoch') + get('serial'))
      if wasted then -- as many slots as callers stay in the line, so that who comes later finds its own
        local last = first_slot(cost, spaced)
        add(last, cost)
        put_in_line(last, cost)
      end
      return reply
    end
  end
  return reserve(cost, max_wait, spaced)
end

follow_raise(arguments[1])
local reply = resume(unpack(arguments))
-- use: rate_write
return reply
