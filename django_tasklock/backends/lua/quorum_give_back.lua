-- Restore locks that this instance has lost or missed, and that a majority of the instances has just confirmed.
-- Existing keys are not overwritten; nothing is done on an instance that does not vote (quorum_acquire.lua).
-- KEYS: 1 marker (quorum_state.lua), 2 index by expiry, then for each lock: its key, the greatest fence of its share
-- ARGV: for each lock: ttl ms, the fence, its value on the others
-- Reply: how many; 'empty': the instance came back empty, and is not admitted yet
-- use: clock
local ends = string.match(redis.call('GET', KEYS[1]) or '', '^(%d+) %d+ ')
local now = clock()
if not ends then return 'empty' end
if tonumber(ends) > now then return 0 end
local number = 0
for i = 3, #KEYS, 2 do
  local ttl, fence, value = unpack(ARGV, (i - 3) / 2 * 3 + 1, (i - 3) / 2 * 3 + 3)
  if redis.call('SET', KEYS[i], value, 'PX', ttl, 'NX') then
    redis.call('ZADD', KEYS[2], now + ttl, KEYS[i])
    if tonumber(redis.call('GET', KEYS[i + 1]) or 0) < tonumber(fence) then redis.call('SET', KEYS[i + 1], fence) end
    number = number + 1
  end
end
return number
