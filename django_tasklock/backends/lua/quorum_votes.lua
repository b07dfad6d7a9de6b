-- Whether an instance votes. A restart was detected before, by quorum_greet.lua.
-- KEYS: 1 marker (quorum_state.lua)
-- Reply: ms until it votes; 0: it does; -1: it is empty, and not admitted yet
-- use: clock
local ends = string.match(redis.call('GET', KEYS[1]) or '', '^(%d+) %d+ ')
if not ends then return -1 end
return ends == '0' and 0 or math.max(0, tonumber(ends) - clock())
