-- Correct a booking to the actual cost of the call.
-- KEYS, ARGV: see _rates.lua; 1 cost, 2 slot, 3 edition, 4 the actual cost
-- Reply: 1; 0: nothing changed (another edition, given back, or no difference)
-- use: rates
if edition ~= get('epoch') or amount == cost or was_given_back(slot) then return 0 end
if amount < cost then
  remove_units(slot, cost - amount)
  finish()
  return 1
end
local more, at = amount - cost, floor_to_grid(slot)
for _, rate in ipairs(rates) do
  local counts = algorithm ~= 'window' or cell_end(rate, at) + rate.window + rate.margin > now() -- it is not too late
  if counts and (algorithm ~= 'window' or redis.call('EXISTS', rate.ring) == 0) then -- it was settled to nothing before
    add_to_rate(rate, slot, more)
  elseif counts then
    local found = redis.call('LPOS', rate.ring, text(cell_end(rate, at))) or 0
    if redis.call('LLEN', rate.ring) / 2 - found / 2 <= get('x:' .. rate.key) then found = 0 end -- the newest
    redis.call('LSET', rate.ring, found + 1, text(tonumber(redis.call('LINDEX', rate.ring, found + 1)) + more))
    set('n:' .. rate.key, get('n:' .. rate.key) + more)
  end
end
finish()
return 1
