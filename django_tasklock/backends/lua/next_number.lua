-- Draw a sequence number: the time in microseconds, greater than any drawn before; join the order of a name with it.
-- KEYS: 1 last sequence number, 2 order
-- ARGV: 1 member ('': none), 2 ttl of the order in ms
-- Reply: the number
-- use: values clock
local _, text = clock()
local last = tonumber(redis.call('GET', KEYS[1]) or 0)
if tonumber(text) <= last then text = string.format('%.0f', last + 1) end
even_if_full(KEYS[2])
redis.call('SET', KEYS[1], text)
if ARGV[1] ~= '' then
  redis.call('ZADD', KEYS[2], text, ARGV[1])
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
end
return tonumber(text)
