-- The number of locks of a state that expire by some times.
-- KEYS: 1 index by expiry
-- ARGV: 1 lower bound of the scores, 2... the times in ms
-- Reply: a number for each, in one text
local reply = {}
for i = 2, #ARGV do reply[i - 1] = redis.call('ZCOUNT', KEYS[1], ARGV[1], ARGV[i]) end
return table.concat(reply, ' ')
