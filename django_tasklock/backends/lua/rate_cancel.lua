-- Give back a place that was not used.
-- KEYS, ARGV: see _rates.lua; 1 cost, 2 slot, 3 epoch
-- Reply: 1, or 0: of another epoch, there is nothing to give back
if epoch ~= get('epoch') then return 0 end
if slot > now() and algorithm ~= 'counter' then give(slot, cost) else undo(slot, cost) end
finish()
return 1
