-- Take a permit, if fewer than the limit are taken or this token has one; join the queue if asked to.
-- KEYS: see _permits.lua
-- ARGV: 1 token, 2 ttl ms, 3 hold ms, 4 holder json, 5 limit, 6 queue entry ('' or absent: do not wait),
--       7 rank in the queue ('' or absent: the last), 8 '1': it is subscribed to its channel
-- Reply: granted: fence, or {fence, expired} unless that is 0; busy: {ms left of the lease that ends first, that
--        member's value or nil, now ms, expired, rank if it waits}. expired: how many leases were found to have run out
-- use: values clock fence waiters permits
local token, entry = ARGV[1], ARGV[6] or ''
local now, micros = clock()
even_if_full(KEYS[4])
local expired = drop_expired(now)
local function granted(fence)
  return expired > 0 and {fence, expired} or fence
end
local mine = redis.call('HGET', KEYS[2], token)
local queued = not mine and redis.call('EXISTS', KEYS[4]) == 1
if queued then
  if entry ~= '' then join_queue(token, entry, ARGV[7], ARGV[8], now, micros) end
  if grant_free(token, tonumber(ARGV[5])) == token then
    return granted(admit(tick(micros), now, token, ARGV[2], ARGV[3], ARGV[4]))
  end
  mine = redis.call('HGET', KEYS[2], token)
end
if mine then
  redis.call('ZADD', KEYS[1], now + tonumber(ARGV[2]), token)
  if entry ~= '' then leave_queue(token, entry) end
  return granted(tonumber(string.match(mine, ',"fence":(%d+),"until":%d+}$')))
end
local taken = redis.call('ZCARD', KEYS[1])
if taken < tonumber(ARGV[5]) then
  -- The queue is empty, or no waiter can be woken: then the first to poll takes it.
  local first = queued and redis.call('ZRANGE', KEYS[4], 0, 0)[1]
  if not first or taken < tonumber(string.match(first, '(%d+)$') or 0) then
    if entry ~= '' then leave_queue(token, entry) end
    return granted(admit(tick(micros), now, token, ARGV[2], ARGV[3], ARGV[4]))
  end
end
local rank = entry ~= '' and join_queue(token, entry, ARGV[7], ARGV[8], now, micros) or nil
local next = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
if not next[1] then return {1000, false, now, expired, rank} end
return {tonumber(next[2]) - now, redis.call('HGET', KEYS[2], next[1]), now, expired, rank}
