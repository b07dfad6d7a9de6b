-- Vote for the terms of a process. They come into force when more processes vote for them than for those in force; then
-- bookings for more than FIXED_AHEAD ahead are dropped, and their sleeping callers book again.
-- KEYS, ARGV: see _rates.lua; 2 the process; the last key: the votes
-- Reply: the terms in force
-- use: rates
local FIXED_AHEAD, VOTE_LIFETIME = 2100000, 60000000
local votes, own = KEYS[#KEYS], ARGV[14]
redis.call('ZADD', votes, text(time), ARGV[2] .. ' ' .. own)
redis.call('ZREMRANGEBYSCORE', votes, '-inf', text(time - VOTE_LIFETIME))
redis.call('ZREMRANGEBYSCORE', votes, text(time + VOTE_LIFETIME), '+inf')
redis.call('PEXPIRE', votes, 2 * VOTE_LIFETIME / 1000)
if rule and rule ~= own then
  local ours, theirs = 0, 0
  for _, vote in ipairs(redis.call('ZRANGE', votes, 0, -1)) do
    local said = string.match(vote, ' (.*)$')
    if said == own then ours = ours + 1 elseif said == rule then theirs = theirs + 1 end
  end
  if ours <= theirs then return rule end
  local cut = floor_to_grid(now() + FIXED_AHEAD)
  cut = math.max(cut, math.min(get('lee'), cut + MAX_LEEWAY))
  local last = math.min(get('last'), cut)
  set('epoch', math.max(get('epoch') + 2, time))
  set('last', last)
  set('seq', 0)
  set('stood', 0)
  set('buried', 0)
  redis.call('DEL', KEYS[2], KEYS[4], KEYS[5])
  for _, rate in ipairs(rates) do
    local cell = math.ceil(rate.window / 100)
    if algorithm == 'window' then
      while true do
        local head = tonumber(redis.call('LINDEX', rate.ring, 0) or 0)
        if head <= cut or (head % cell == 0 and head - cell < cut) then break end
        redis.call('LTRIM', rate.ring, 2, -1)
      end
      set('rough', math.max(get('rough'), tonumber(redis.call('LINDEX', rate.ring, 0) or 0)))
      set('n:' .. rate.key, 0)
      set('x:' .. rate.key, redis.call('LLEN', rate.ring) / 2)
      set('b:' .. rate.key, last)
      set('z:' .. rate.key, math.min(get('z:' .. rate.key), cut))
      recount_aside(rate)
    else
      set('tat:' .. rate.key, last + rate.burst * interval_of(rate))
    end
  end
end
if rule ~= own then
  rule = own
  redis.call('HSET', KEYS[1], 'rule', own)
  renew_expiry = true
end
finish()
return rule
