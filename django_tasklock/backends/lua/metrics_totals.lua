-- All that was counted, or what was in some hours.
-- KEYS: 1 index by expiry
-- ARGV: 1 how many of the last hours; '': all together
-- Reply: {hour or '', {field, value, ...}, ...}
-- use: clock counts
local now = clock()
count_at(KEYS[1], now)
local current = math.floor(now / 3600000)
local reply = {}
if ARGV[1] == '' then
  for _, hour in ipairs(redis.call('SMEMBERS', ROOT .. 'hours')) do
    reply[#reply + 1] = ''
    reply[#reply + 1] = redis.call('HGETALL', ROOT .. 'counts:' .. hour)
  end
  reply[#reply + 1] = ''
  reply[#reply + 1] = redis.call('HGETALL', ROOT .. 'totals')
  return reply
end
for hour = current - ARGV[1] + 1, current do
  for _, kind in ipairs({'hour:', 'counts:'}) do
    local flat = redis.call('HGETALL', ROOT .. kind .. string.format('%.0f', hour))
    if flat[1] then
      reply[#reply + 1] = string.format('%.0f', hour)
      reply[#reply + 1] = flat
    end
  end
end
return reply
