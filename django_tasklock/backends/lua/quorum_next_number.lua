-- Draw the proposed sequence number, unless one as great was drawn before; join the order of a name with it.
-- KEYS: 1 last sequence number, 2 order
-- ARGV: 1 member ('': none), 2 ttl of the order in ms, 3 proposal
-- Reply: the number, or, if it was refused, a greater one that the next proposal must reach
-- use: values
local last = redis.call('GET', KEYS[1])
if last and tonumber(last) >= tonumber(ARGV[3]) then return tonumber(last) + 1 end
even_if_full(KEYS[2])
redis.call('SET', KEYS[1], ARGV[3])
if ARGV[1] ~= '' then
  redis.call('ZADD', KEYS[2], ARGV[3], ARGV[1])
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
end
return tonumber(ARGV[3])
