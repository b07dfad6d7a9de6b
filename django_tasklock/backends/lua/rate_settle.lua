-- A call cost more or less than was booked for it.
-- KEYS, ARGV: see _rates.lua; 1 cost, 2 slot, 3 epoch, 4 what it did cost
-- Reply: 1, or 0: of another epoch, or there is no difference
if epoch ~= get('epoch') or amount == cost then return 0 end
if amount < cost then
  undo(slot, cost - amount)
  finish()
  return 1
end
local more = amount - cost
for _, rate in ipairs(rates) do
  if algorithm ~= 'window' then
    enter(rate, slot, more)
  elseif end_of(rate, slot) + rate.window + rate.margin > now() and redis.call('EXISTS', rate.ring) == 1 then
    local at = redis.call('LPOS', rate.ring, text(end_of(rate, slot))) or 0
    if redis.call('LLEN', rate.ring) / 2 - at / 2 <= get('x:' .. rate.key) then at = 0 end -- as if it were the last
    redis.call('LSET', rate.ring, at + 1, text(tonumber(redis.call('LINDEX', rate.ring, at + 1)) + more))
    set('n:' .. rate.key, get('n:' .. rate.key) + more)
  end
end
finish()
return 1
