-- Drop some orphaned locks from the index. For a lock that exists, correct its index entry.
-- KEYS: 1 index by expiry
-- ARGV: 1 how many to drop at most
-- Reply: how many were dropped
-- use: clock
local now, gone = clock(), {}
repeat
  local page = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now), 'LIMIT', #gone, ARGV[1] - #gone)
  local before = #gone
  for _, key in ipairs(page) do
    local left = redis.call('PTTL', key)
    if left == -2 then
      gone[#gone + 1] = key
    else -- for at least another millisecond: in its last one a key has none left, and time stands still for a script
      redis.call('ZADD', KEYS[1], left < 0 and '+inf' or now + math.max(1, left), key)
    end
  end
until #gone - before == #page
for i = 1, #gone, 1000 do
  redis.call('ZREM', KEYS[1], unpack(gone, i, math.min(i + 999, #gone)))
end
return #gone
