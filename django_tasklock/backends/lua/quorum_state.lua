-- The state of an instance. One that is empty records since when.
-- KEYS: 1 marker, 2 the run id that was admitted, 3 index by expiry, 4... the greatest fences
-- Reply: {marker, ms until it votes (-1: it is empty), ms until the last of its leases ends, the greatest fence}
-- Marker: "E<since>": empty; "<until ms> <floor> E<since>": it votes from then on (0: now), with fences above floor.
-- use: clock
local now, micros = clock()
local marker = redis.call('GET', KEYS[1])
if not marker then
  marker = 'E' .. micros
  redis.call('SET', KEYS[1], marker)
  local told = redis.pcall('INFO', 'server')
  local run = type(told) == 'string' and string.match(told, 'run_id:(%w+)')
  if run then redis.call('SET', KEYS[2], run) end -- both were lost; quorum_greet.lua compares it
end
local ends, floor = string.match(marker, '^(%d+) (%d+) ')
local last = redis.call('ZREVRANGEBYSCORE', KEYS[3], '(+inf', '-inf', 'WITHSCORES', 'LIMIT', 0, 1)
local left = last[2] and math.max(0, last[2] - now) or 0
local most = tonumber(floor or 0)
for _, fence in ipairs(redis.call('MGET', unpack(KEYS, 4))) do
  if fence and tonumber(fence) > most then most = tonumber(fence) end
end
return {marker, ends and math.max(0, ends - now) or -1, math.ceil(left), string.format('%.0f', most)}
