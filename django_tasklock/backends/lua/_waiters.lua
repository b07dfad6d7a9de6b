-- The queue of a lock, or of a limiter.
-- Entry: "<token> <channel> <claim ms> <hold ms> <holder json>", scored by arrival.
-- Seen: a hash by token, when its waiter last looked (ms); negative while nobody listens on its channel.
-- KEYS: 3 fence counter, 4 queue, the last: seen

local SEEN = KEYS[#KEYS]
local FROZEN = 3000 -- ms: every live waiter looks in each second; as long as a claim, see Layout

-- Take a place in the queue, or look from there. A place that was lost is taken at its old rank. Reply: the rank.
local function join(token, entry, rank, listens, now, micros)
  rank = redis.call('ZSCORE', KEYS[4], entry) or (rank or '') ~= '' and rank or tick(micros)
  redis.call('ZADD', KEYS[4], rank, entry)
  redis.call('HSET', SEEN, token, string.format('%.0f', listens == '1' and now or -now))
  redis.call('PEXPIRE', KEYS[4], 30000)
  redis.call('PEXPIRE', SEEN, 30000)
  return tonumber(rank)
end

local function quit(token, entry)
  redis.call('ZREM', KEYS[4], entry)
  redis.call('HDEL', SEEN, token)
end

-- Say something to a waiter. Reply: whether it is there, or nil: we may not publish. Who has not looked for so long is
-- in a process that was stopped, all of whose waiters are passed over; one that goes on has its old rank back.
local function tell(token, channel, message, now)
  local seen = tonumber(redis.call('HGET', SEEN, token)) -- none: it waits by an earlier version
  if seen and now - math.abs(seen) >= FROZEN then return false end
  if seen and seen < 0 then return true end -- it looks by itself, soon
  local heard = redis.pcall('PUBLISH', channel, message)
  if type(heard) ~= 'number' then return nil end
  return heard > 0
end

