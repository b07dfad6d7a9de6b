-- Take the lock, if it is free or already held by this token; join the queue if asked to.
-- With the token of an earlier hold (5), replace that hold: each hold has a token of its own.
-- Value of a lock: {"token":"<32 hex>","holder":{...},"at":<ms>,"fence":<n>,"until":<ms>}, and before the fence
--                  "asked":<ms>, once its release was requested.
-- KEYS of the scripts that can grant: 1 lock, 2 index by expiry, 3 fence counter, 4 queue, 5 waiters
-- ARGV: 1 token, 2 ttl ms, 3 hold ms, 4 holder json, 5 the token of the hold to follow ('': none), 6 channel ('' or
--       absent: do not wait), 7 ttl ms of a hand-over, 8 rank in the queue ('': the last)
-- Reply: granted: {fence, expired}; busy: {ms left (-1: no expiry), value, now ms, expired, rank, heard}.
--        expired: 1 if the lock was found to have ended without a release, else 0; if it waits, its rank, and whether
--        its channel has a subscriber (1, 0)
-- use: clock fence grant
local key, token, ttl, hold, holder, former = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local channel = ARGV[6] or ''
local now, micros = clock()

-- A lock that is held, or whose lease ran out, is in the index; one that is not has no waiters.
local added = redis.pcall('ZADD', KEYS[2], 'NX', now + ttl, key)
if type(added) == 'table' then
  -- use: values
  even_if_full(KEYS[2])
  added = redis.call('ZADD', KEYS[2], 'NX', now + ttl, key)
end
local listed, expired = added == 0, 0
if not listed then
  local fence = grant(tick(micros), now, token, ttl, hold, holder)
  if fence and channel ~= '' then
    -- use: waiters
    leave_queue(token)
  end
  if fence then return {fence, expired} end
end
-- use: values waiters pass_on

local function join()
  return join_queue(token, channel, ARGV[7], hold, 1, holder, ARGV[8], now, micros)
end

local value = redis.call('GET', key)
if not value then -- its lease ran out
  expired = 1
  if channel ~= '' then join() end
  local whose = pass_on(token)
  if not whose or whose == token then
    redis.call('ZADD', KEYS[2], now + ttl, key)
    return {grant(tick(micros), now, token, ttl, hold, holder), expired}
  end
  value = redis.call('GET', key)
end
if owned(value, token) then
  redis.call('PEXPIRE', key, ttl)
  redis.call('ZADD', KEYS[2], now + ttl, key)
  if channel ~= '' then leave_queue(token) end
  return {tonumber(string.match(value, ',"fence":(%d+),"until":%d+}$')), expired}
end
if former ~= '' and owned(value, former) then
  redis.call('DEL', key)
  redis.call('ZADD', KEYS[2], now + ttl, key)
  return {grant(tick(micros), now, token, ttl, hold, holder), expired}
end
local left = redis.call('PTTL', key)
if not listed then -- set by hand, or the index was lost
  redis.call('ZADD', KEYS[2], left < 0 and '+inf' or now + left, key)
end
if channel == '' then return {left, value, now, expired} end
return {left, value, now, expired, join()}
