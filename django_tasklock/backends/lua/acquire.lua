-- Take the lock, if it is free or already held by this token; join the queue if asked to.
-- A holder that asks to follow an earlier one (6) replaces it: a token is good for one holder.
-- KEYS: 1 to 6 as in every script that grants, 7 who found it busy
-- ARGV: 1 token, 2 ttl ms, 3 hold ms, 4 holder json, 5 queue entry ('' or absent: do not wait),
--       6 the token of the hold to follow ('' or absent: none)
-- Reply: granted: fence; busy: {ms left (-1: no expiry), value, now ms}
local key, token, entry = KEYS[1], ARGV[1], ARGV[5] or ''
local value = redis.call('GET', key)
if not value then
  if entry == '' then
    if redis.call('EXISTS', KEYS[4]) == 1 then -- the holder died; who waits comes first
      pass_on()
      value = redis.call('GET', key)
    end
  else
    if redis.call('EXISTS', KEYS[4]) == 1 then
      local now, t = clock()
      redis.call('ZADD', KEYS[4], 'NX', string.format('%.0f', tick(t)), entry)
      if pass_on(token) ~= token then
        value = redis.call('GET', key)
        if not value then redis.call('ZREM', KEYS[4], entry) end -- nobody may be told: who looks first has it
      end
    end
  end
  if not value then
    local now, t = clock()
    return grant(tick(t), now, token, ARGV[2], ARGV[3], ARGV[4])
  end
end
if owned(value, token) then
  local now = clock()
  redis.call('PEXPIRE', key, ARGV[2])
  redis.call('ZADD', KEYS[2], now + tonumber(ARGV[2]), key)
  if entry ~= '' then redis.call('ZREM', KEYS[4], entry) end
  return tonumber(string.match(value, ',"fence":(%d+),"until":%d+}$'))
end
local now, t = clock()
if (ARGV[6] or '') ~= '' and owned(value, ARGV[6]) then
  return grant(tick(t), now, token, ARGV[2], ARGV[3], ARGV[4])
end
if entry ~= '' then
  if not redis.call('ZSCORE', KEYS[4], entry) then
    redis.call('ZADD', KEYS[4], string.format('%.0f', tick(t)), entry)
  end
  redis.call('PEXPIRE', KEYS[4], 30000) -- every live waiter looks in each second
else -- whoever wonders why it was refused asks within the hour
  redis.call('LPUSH', KEYS[7], string.format('%.0f ', now) .. ARGV[4])
  redis.call('LTRIM', KEYS[7], 0, 4)
  redis.call('PEXPIRE', KEYS[7], 3600000)
end
local left = redis.call('PTTL', key)
if foreign(value) then -- whom it holds up shall find it listed
  local ends = left < 0 and '+inf' or now + left
  redis.call('ZADD', KEYS[2], 'NX', ends, key)
  redis.call('ZADD', KEYS[5], 'NX', now, key)
  redis.call('ZADD', KEYS[6], 'NX', ends, key)
end
return {left, value, now}
