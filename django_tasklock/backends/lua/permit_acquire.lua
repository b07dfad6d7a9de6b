-- Take a permit, if fewer than the limit are taken or this token has one; join the queue if asked to.
-- KEYS: 1 to 5 as in every script that grants
-- ARGV: 1 token, 2 ttl ms, 3 hold ms, 4 holder json, 5 limit, 6 queue entry ('' or absent: do not wait)
-- Reply: granted: fence; busy: {ms left of the lease that ends first, that member's value or nil, now ms}
local token, entry = ARGV[1], ARGV[6] or ''
local now, t = clock()
lapse(now)
local mine = redis.call('HGET', KEYS[2], token)
local queued = not mine and redis.call('EXISTS', KEYS[4]) == 1
if queued then
  if entry ~= '' then redis.call('ZADD', KEYS[4], 'NX', string.format('%.0f', tick(t)), entry) end
  if serve(token, tonumber(ARGV[5])) == token then return admit(tick(t), now, token, ARGV[2], ARGV[3], ARGV[4]) end
  mine = redis.call('HGET', KEYS[2], token)
end
if mine then
  redis.call('ZADD', KEYS[1], now + tonumber(ARGV[2]), token)
  if entry ~= '' then redis.call('ZREM', KEYS[4], entry) end
  return tonumber(string.match(mine, ',"fence":(%d+),"until":%d+}$'))
end
local taken = redis.call('ZCARD', KEYS[1])
if taken < tonumber(ARGV[5]) then
  -- Nobody waits, or nobody may be told that it is its turn: then who looks first has it.
  local others = queued and redis.call('ZCARD', KEYS[4]) or 0
  local first = others > 0 and redis.call('ZRANGE', KEYS[4], 0, 0)[1]
  if not first or taken < tonumber(string.match(first, '(%d+)$')) then
    if entry ~= '' then redis.call('ZREM', KEYS[4], entry) end
    return admit(tick(t), now, token, ARGV[2], ARGV[3], ARGV[4])
  end
end
if entry ~= '' then
  if not queued then redis.call('ZADD', KEYS[4], string.format('%.0f', tick(t)), entry) end
  redis.call('PEXPIRE', KEYS[4], 30000) -- every live waiter looks in each second
end
local next = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
if not next[1] then return {1000, false, now} end
return {tonumber(next[2]) - now, redis.call('HGET', KEYS[2], next[1]), now}
