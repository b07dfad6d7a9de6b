-- Record what the holder of a lock waits for outside of any queue; or read that.
-- Value: "<since ms> <token> <what>"
-- KEYS: 1 record
-- ARGV: 1 token, 2 what it waits for ('': read), 3 ttl in ms
-- Reply, read: {since ms, now ms, what}; nil if nothing is recorded of this holder
-- use: clock
local now = clock()
local since, token, what = string.match(redis.call('GET', KEYS[1]) or '', '^(%d+) (%S+) (.*)$')
if ARGV[2] == '' then return token == ARGV[1] and {tonumber(since), now, what} or nil end
if token ~= ARGV[1] or what ~= ARGV[2] then since = string.format('%d', now) end
redis.call('SET', KEYS[1], since .. ' ' .. ARGV[1] .. ' ' .. ARGV[2], 'PX', ARGV[3])
return nil
