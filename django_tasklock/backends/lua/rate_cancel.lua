-- Give back a slot that was not used; once, however often it is said.
-- KEYS, ARGV: see _rates.lua; 1 cost, 2 slot, 3 edition
-- Reply: 1, or 0: of another edition, given back before, or of no window any more: there is nothing to give back
-- use: rates
if edition == get('epoch') + 1 then
  if not leave(slot, cost) then return 0 end
elseif edition ~= get('epoch') or not known(slot) or slot < now() - longest then
  return 0
end
bury(slot)
if slot > now() then give(slot, cost) else undo(slot, cost) end
finish()
-- use: rate_counts
count_limit('cancelled')
return 1
