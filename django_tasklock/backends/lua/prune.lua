-- Drop some orphaned locks from the index. For a lock that exists, correct its index entry.
-- KEYS: 1 index by expiry
-- ARGV: 1 how many to examine, 2 ms since 1970 before which they must have expired ('': now), 3 key prefix,
--       4 how many to skip, from the oldest on
-- Reply: {how many were dropped, how many stay because of the prefix}
-- use: clock
local now = clock()
local before = string.format('%.0f', math.min(now, tonumber(ARGV[2]) or now))
local gone, stay = {}, 0
for _, key in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', before, 'LIMIT', ARGV[4], ARGV[1])) do
  if string.sub(key, 1, #ARGV[3]) ~= ARGV[3] then
    stay = stay + 1
  else
    local left = redis.call('PTTL', key)
    if left == -2 then
      gone[#gone + 1] = key
    else
      redis.call('ZADD', KEYS[1], left < 0 and '+inf' or now + left, key)
    end
  end
end
for i = 1, #gone, 1000 do
  redis.call('ZREM', KEYS[1], unpack(gone, i, math.min(i + 999, #gone)))
end
return {#gone, stay}
