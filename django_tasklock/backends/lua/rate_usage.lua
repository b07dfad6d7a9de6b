-- The usage of a limiter. Changes nothing.
-- KEYS, ARGV: see _rates.lua
-- Reply: {time, free, next, tail, paused, share, refused, then for each rate: limit, used, ahead}
-- use: rates
local _, at = find_free_slot(1)
local following = at and floor_to_grid(at) or first_slot(1)
local reply = {time, redis.call('ZCOUNT', KEYS[2], text(now()), '+inf'), math.max(0, time_until(following)),
  get('last') > 0 and math.max(0, time_until(get('last'))) or 0, math.max(0, get('until') - time), get('share'),
  get('refused')}
for _, rate in ipairs(rates) do
  local used, ahead = 0, 0
  if algorithm ~= 'window' then
    used = math.ceil(math.max(0, get('tat:' .. rate.key) - now()) / interval_of(rate))
  else
    local ring = redis.call('LRANGE', rate.ring, 0, -1)
    for i = 1, #ring, 2 do
      local stamp = tonumber(ring[i])
      if stamp > now() then
        ahead = ahead + tonumber(ring[i + 1])
      elseif stamp > now() - rate.window then
        used = used + tonumber(ring[i + 1])
      end
    end
  end
  reply[#reply + 1] = limit_of(rate)
  reply[#reply + 1] = used
  reply[#reply + 1] = ahead
end
return reply
