-- Correct the booking of a call to its actual cost.
-- KEYS, ARGV: see _rates.lua; cost, slot, edition, actual cost
-- Reply: 1, or 0: nothing was changed
-- use: rates rate_change rate_slots
local cost, slot, edition, actual = unpack(arguments)
local found = 0
for _, rate in ipairs(rates) do
  if actual ~= cost and owner_of(rate, slot) == edition then
    correct_units(rate, slot, actual - cost)
    found = 1
  end
end
-- use: rate_write
return found
