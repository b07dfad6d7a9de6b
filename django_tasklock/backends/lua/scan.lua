-- Put locks that other code has set into the index: one step through all keys of the database.
-- KEYS: 1 index by expiry
-- ARGV: 1 cursor, 2 pattern of the locks' keys, 3 the beginning of our own other keys
-- Reply: {next cursor ('0': the end), how many locks were not in the index}
-- use: clock
local now, added = clock(), 0
local step = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', 1000)
for _, key in ipairs(step[2]) do
  local left = redis.call('PTTL', key)
  if left ~= -2 and string.sub(key, 1, #ARGV[3]) ~= ARGV[3] then
    added = added + redis.call('ZADD', KEYS[1], 'NX', left < 0 and '+inf' or now + math.max(1, left), key)
  end
end
return {step[1], added}
