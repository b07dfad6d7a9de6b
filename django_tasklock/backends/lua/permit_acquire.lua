-- Take a permit, if fewer than the limit are taken or this token has one; join the queue if asked to.
-- KEYS: see _permits.lua
-- ARGV: 1 token, 2 ttl ms, 3 hold ms, 4 holder json, 5 limit, 6 channel ('' or absent: do not wait), 7 ttl ms of a
--       hand-over, 8 rank in the queue ('': the last)
-- Reply: granted: {fence, expired}; busy: {ms left of the lease that ends first, that member's value or nil, now ms,
--        expired, rank, heard}. expired: how many leases were found to have run out; the others as in acquire.lua
-- use: clock fence permits
local token, ttl, hold, holder, limit, channel = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6] or ''
local now, micros = clock()
redis.pcall('ZREM', KEYS[4], '') -- see even_if_full
local expired = drop_expired(now)

local mine = redis.call('HGET', KEYS[2], token)
if mine then
  redis.call('ZADD', KEYS[1], now + ttl, token)
  if channel ~= '' then
    -- use: waiters
    leave_queue(token)
  end
  return {tonumber(string.match(mine, ',"fence":(%d+),"until":%d+}$')), expired}
end
local free
if redis.call('EXISTS', KEYS[4]) == 0 then
  free = redis.call('ZCARD', KEYS[1]) < tonumber(limit)
else
  -- use: waiters permit_grants
  if channel ~= '' then join_queue(token, channel, ARGV[7], hold, limit, holder, ARGV[8], now, micros) end
  free = grant_free(token, tonumber(limit))
end
if free then return {admit(tick(micros), now, token, ttl, hold, holder), expired} end
local first, reply = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES'), {1000, false, now, expired}
if first[1] then reply[1], reply[2] = tonumber(first[2]) - now, redis.call('HGET', KEYS[2], first[1]) end
if channel ~= '' then
  -- use: waiters
  reply[5], reply[6] = join_queue(token, channel, ARGV[7], hold, limit, holder, ARGV[8], now, micros)
end
return reply
