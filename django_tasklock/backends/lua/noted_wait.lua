-- Note what the holder of a lock waits for itself, where no queue says so; or tell what was noted.
-- Value: "<since ms> <token> <what>"
-- KEYS: 1 note
-- ARGV: 1 token, 2 what it waits for ('': tell), 3 ms for which that is known
-- Reply, told: {since ms, now ms, what}; nil if nothing is noted of this holder
-- use: clock
local now = clock()
local since, token, what = string.match(redis.call('GET', KEYS[1]) or '', '^(%d+) (%S+) (.*)$')
if ARGV[2] == '' then return token == ARGV[1] and {tonumber(since), now, what} or nil end
if token ~= ARGV[1] or what ~= ARGV[2] then since = string.format('%d', now) end
redis.call('SET', KEYS[1], since .. ' ' .. ARGV[1] .. ' ' .. ARGV[2], 'PX', ARGV[3])
return nil
