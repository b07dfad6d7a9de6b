-- Give back a slot that was not used; repeating it has no effect.
-- KEYS, ARGV: see _rates.lua; 1 cost, 2 slot, 3 edition
-- Reply: 1; 0: nothing to give back (another edition, given back before, or no longer in any window)
-- use: rates
if edition == get('epoch') + 1 then
  if not remove_from_line(slot, cost) then return 0 end
elseif edition ~= get('epoch') or was_given_back(slot) or slot < now() - longest_window then
  return 0
end
mark_given_back(slot)
if slot > now() then give_back(slot, cost) else remove_units(slot, cost) end
finish()
return 1
