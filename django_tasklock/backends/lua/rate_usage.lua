-- The usage of a limiter; nothing is changed.
-- KEYS, ARGV: see _rates.lua; none
-- Reply: {time, free, next, tail, paused, share, refused, then for each rate: limit, used, ahead}
-- use: rates rate_first_slot rate_slots
local free = find_free_slot(1)
local following = free and free[2] or first_slot(1)
local reply = {time, redis.call('ZCOUNT', FREE, text(now()), '+inf'), math.max(0, time_until(following)),
  get('last') > 0 and math.max(0, time_until(get('last'))) or 0, math.max(0, get('until') - time), get('share'),
  get('refused')}
for _, rate in ipairs(rates) do
  local ring, used, ahead = redis.call('LRANGE', rate.ring, 0, -1), 0, 0
  for i = 1, #ring, 3 do
    local slot, units = tonumber(ring[i]), tonumber(ring[i + 1])
    if slot > now() then
      ahead = ahead + units
    elseif slot > now() - rate.window then
      used = used + units
    end
  end
  for _, number in ipairs({limit_of(rate), used, ahead}) do reply[#reply + 1] = number end
end
return reply
