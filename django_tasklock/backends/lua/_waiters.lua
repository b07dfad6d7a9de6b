-- The queue of a lock, or of a limiter.
-- Entry: "<token> <channel> <claim ms> <hold ms> <holder json>", scored by arrival.
-- Seen: a hash by token, when its waiter last looked (ms); negative while nobody listens on its channel. In a Redis
-- Cluster, where channels have a hash tag, also at which node it listened then: "<ms> <node>".
-- KEYS: 3 fence counter, 4 queue, the last: seen

local SEEN = KEYS[#KEYS]
local FROZEN = 3000 -- ms: every live waiter looks in each second; as long as a claim, see Layout

-- How many listen on a channel at this node, and which one that is; nil where that is not asked for: in a cluster a
-- publish is also carried to who listens at other nodes, which must not hear what was not meant for it.
local function listeners(channel)
  if not string.find(channel, '{', 1, true) then return nil end
  local said, node = redis.pcall('PUBSUB', 'NUMSUB', channel), redis.pcall('CLUSTER', 'MYID')
  if type(node) ~= 'string' or said.err then return nil end
  return said[2], node
end

-- Take a place in the queue, or look from there. A place that was lost is taken at its old rank. Reply: the rank.
local function join(token, entry, rank, listens, now, micros)
  rank = redis.call('ZSCORE', KEYS[4], entry) or (rank or '') ~= '' and rank or tick(micros)
  local number, node = listeners(string.match(entry, '^%S+ (%S+)') or ' ')
  local there = listens == '1' and number ~= 0
  redis.call('ZADD', KEYS[4], rank, entry)
  redis.call('HSET', SEEN, token, string.format('%.0f', there and now or -now) .. (node and ' ' .. node or ''))
  redis.call('PEXPIRE', KEYS[4], 30000)
  redis.call('PEXPIRE', SEEN, 30000)
  return tonumber(rank)
end

local function quit(token, entry)
  redis.call('ZREM', KEYS[4], entry)
  redis.call('HDEL', SEEN, token)
end

-- Say something to a waiter. Reply: whether it is there, or nil: we may not publish. Who has not looked for so long is
-- in a process that was stopped, all of whose waiters are passed over; one that goes on has its old rank back. Who
-- listened at another node, before the slot came here, will look here soon.
local function tell(token, channel, message, now)
  local noted = redis.call('HGET', SEEN, token)
  local seen = noted and tonumber(string.match(noted, '^%S+'))
  if not seen then return false end -- its token was given up, see release.lua
  if now - math.abs(seen) >= FROZEN then return false end
  if seen < 0 then return true end -- it looks by itself, soon
  local number, node = listeners(channel)
  if number == 0 then return string.match(noted, ' (%S+)$') ~= node end
  local heard = redis.pcall('PUBLISH', channel, message)
  if type(heard) ~= 'number' then return nil end
  return heard > 0
end
