-- Set an expiry on a lock that has none.
-- KEYS: 1 lock, 2 index by expiry
-- ARGV: 1 token ('': a foreign value), 2 ttl ms
-- Reply: 1 done, 0 it has an expiry, is missing, or is not this token's
-- use: values clock
local value = redis.pcall('GET', KEYS[1])
if type(value) == 'table' then value = '' end -- not a text: not our value
if not value or redis.call('PTTL', KEYS[1]) ~= -1 then return 0 end
if ARGV[1] == '' then
  if not foreign(value) then return 0 end
elseif not owned(value, ARGV[1]) then
  return 0
end
local now = clock()
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('ZADD', KEYS[2], now + tonumber(ARGV[2]), KEYS[1])
return 1
