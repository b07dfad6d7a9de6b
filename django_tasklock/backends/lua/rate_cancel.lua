-- Give back a slot that was not used.
-- KEYS, ARGV: see _rates.lua; cost, slot, edition
-- Reply: 1, or 0: the caller has no such slot
-- use: rates rate_change rate_first_slot rate_slots rate_owners
local cost, slot, edition = unpack(arguments)
local owned = is_owned(slot, edition)
if owned then
  remove(LINE, slot, cost)
  if slot > now() then give_back(slot, cost) else remove_units(slot, cost) end
end
-- use: rate_write
return owned and 1 or 0
