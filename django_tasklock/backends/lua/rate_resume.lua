-- What of a place: its turn (wait 0 or less), a better one, longer to wait; missed, or of another epoch: a new one.
-- KEYS, ARGV: see _rates.lua; 1 cost, 2 slot, 3 epoch, 4 how long it may take, 5 'spaced' or the leeway of
--       a new one in microseconds, or both
-- Reply: as of rate_reserve.lua
if epoch ~= get('epoch') then return reserve() end
if algorithm == 'counter' then return booked(slot) end
if slot > now() then
  sweep()
  local member, better = found(cost)
  if member and better < slot then
    take(member, better, cost)
    give(slot, cost)
    slot = better
  end
  finish()
  return booked(slot)
end
local margin = rates[1].margin
for _, rate in ipairs(rates) do margin = math.min(margin, rate.margin) end
if now() - slot <= margin then return booked(slot) end
undo(slot, cost)
return reserve()
