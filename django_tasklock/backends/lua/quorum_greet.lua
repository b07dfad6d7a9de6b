-- The first request on a new connection: whether the instance has run since it was admitted. One that was restarted may
-- have lost locks, whatever it has loaded from its disk: it does not vote until it is admitted again.
-- KEYS: 1 marker, 2 the run id that was admitted
-- Reply: 1 it has; 0 it has not
local told = redis.pcall('INFO', 'server')
local run = type(told) == 'string' and string.match(told, 'run_id:(%w+)')
local before = redis.call('GET', KEYS[2])
if not run or before == run then return 1 end
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[2], run)
return 0
