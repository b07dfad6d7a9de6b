-- Take the lock, if it is free or already held by this token; join the queue if asked to.
-- A holder that asks to follow an earlier one (6) replaces it: a token is good for one holder.
-- KEYS: as in every script that grants
-- ARGV: 1 token, 2 ttl ms, 3 hold ms, 4 holder json, 5 queue entry ('' or absent: do not wait),
--       6 the token of the hold to follow ('' or absent: none), 7 rank in the queue ('' or absent: the last),
--       8 '1': it listens on its channel
-- Reply: granted: fence; busy: {ms left (-1: no expiry), value, now ms, rank if it waits}
local key, token, entry = KEYS[1], ARGV[1], ARGV[5] or ''
local value = redis.call('GET', key)
if not value or entry ~= '' then even_if_full(KEYS[4]) end
if not value then
  local now, t = clock()
  if redis.call('EXISTS', KEYS[4]) == 1 then -- the holder died; who waits comes first
    if entry ~= '' then join(token, entry, ARGV[7], ARGV[8], now, t) end
    if pass_on(token) ~= token then
      value = redis.call('GET', key)
      if not value and entry ~= '' then quit(token, entry) end -- nobody may be told: who looks first has it
    end
  end
  if not value then return grant(tick(t), now, token, ARGV[2], ARGV[3], ARGV[4]) end
end
if owned(value, token) then
  local now = clock()
  redis.call('PEXPIRE', key, ARGV[2])
  redis.call('ZADD', KEYS[2], now + tonumber(ARGV[2]), key)
  if entry ~= '' then quit(token, entry) end
  return tonumber(string.match(value, ',"fence":(%d+),"until":%d+}$'))
end
local now, t = clock()
if (ARGV[6] or '') ~= '' and owned(value, ARGV[6]) then
  return grant(tick(t), now, token, ARGV[2], ARGV[3], ARGV[4])
end
local rank = entry ~= '' and join(token, entry, ARGV[7], ARGV[8], now, t) or nil
local left = redis.call('PTTL', key)
if foreign(value) then -- whom it holds up shall find it listed
  local ends = left < 0 and '+inf' or now + left
  redis.pcall('ZADD', KEYS[2], 'NX', ends, key)
  redis.pcall('ZADD', KEYS[5], 'NX', now, key)
  redis.pcall('ZADD', KEYS[6], 'NX', ends, key)
end
return {left, value, now, rank}
