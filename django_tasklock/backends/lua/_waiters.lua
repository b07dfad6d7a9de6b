-- The queue of a lock, or of a limiter: tokens, scored by arrival.
-- Waiters: a hash by token, "<seen> <channel> <ttl ms> <hold ms> <limit> <holder json>". Seen: when the waiter last asked
-- (ms), negative if its channel had no subscriber then. A token that is not in it was given up: see release.lua.
-- KEYS: 3 fence counter, 4 queue, the last: waiters

local WAITERS = KEYS[#KEYS]
local FROZEN = 3000 -- ms: every live waiter asks once a second; as HANDOVER_TTL in keys.py, the lease of a lock that was handed over

-- Whether a channel has a subscriber at this server. In a cluster, a message also reaches those at other nodes: they must
-- not get a grant of this node, which may not serve the lock any more. A user who may not ask is told that it has one.
local function has_subscriber(channel)
  local told = redis.pcall('PUBSUB', 'NUMSUB', channel)
  return told.err ~= nil or told[2] > 0
end

-- Join the queue, or ask from there. A token that was removed gets its old rank again.
-- Reply: the rank; 1 if the channel has a subscriber, else 0
local function join_queue(token, channel, ttl, hold, limit, holder, rank, now, micros)
  local heard = has_subscriber(channel)
  rank = redis.call('ZSCORE', KEYS[4], token) or rank ~= '' and rank or tick(micros)
  local seen = string.format('%.0f', heard and now or -now)
  redis.call('ZADD', KEYS[4], rank, token)
  redis.call('HSET', WAITERS, token, table.concat({seen, channel, ttl, hold, limit, holder}, ' '))
  redis.call('PEXPIRE', KEYS[4], 30000)
  redis.call('PEXPIRE', WAITERS, 30000)
  return tonumber(rank), heard and 1 or 0
end

local function leave_queue(token)
  redis.call('ZREM', KEYS[4], token)
  redis.call('HDEL', WAITERS, token)
end

-- What is stored of a waiter: seen, channel, ttl, hold, limit, holder; nil: it gave up its token, or is unreadable.
local function waiter_of(token)
  return string.match(redis.call('HGET', WAITERS, token) or '', '^(-?%d+) (%S+) (%d+) (%d+) (%d+) (.*)$')
end

-- Whether a waiter will take what it is granted: it asked a short while ago, and listens, or will ask again at once. One
-- that has not asked for FROZEN is in a stopped process, all of whose waiters are passed over.
local function is_alive(seen, channel, now)
  seen = tonumber(seen)
  return now - math.abs(seen) < FROZEN and (seen < 0 or has_subscriber(channel))
end

-- Tell a waiter what it was granted, and after which of its requests. Without a message it finds out when it asks again.
local function wake(channel, token, fence, seen)
  redis.pcall('PUBLISH', channel, token .. ' ' .. fence .. ' ' .. string.match(seen, '%d+'))
end

