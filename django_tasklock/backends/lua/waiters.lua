-- The waiters for a lock, or for a permit of a limiter, the longest first.
-- KEYS: 1 queue, 2 seen
-- ARGV: 1 how many to return at most
-- Reply: {now ms, number of waiters, entry, arrival in microseconds, when it last polled (ms) or nil, ...}
-- use: clock
local now = clock()
local number = redis.pcall('ZCARD', KEYS[1])
if type(number) == 'table' then return {now, 0} end -- of another type: not ours
local reply = {now, number}
local found = redis.call('ZRANGE', KEYS[1], 0, ARGV[1] - 1, 'WITHSCORES')
for i = 1, #found, 2 do
  local seen = redis.pcall('HGET', KEYS[2], string.match(found[i], '^%S*'))
  reply[#reply + 1] = string.sub(found[i], 1, 16384)
  reply[#reply + 1] = found[i + 1]
  reply[#reply + 1] = type(seen) == 'string' and seen or false
end
return reply
