-- Record in a lock's value that its holder is asked to release it.
-- KEYS: 1 lock
-- ARGV: 1 token
-- Reply: 1 recorded, now or before, 0 not this token's lock
-- use: values clock
local value = redis.pcall('GET', KEYS[1])
if type(value) ~= 'string' or not owned(value, ARGV[1]) then return 0 end
if not string.find(value, '"asked":%d+,"fence":%d+,"until":%d+}$') then
  local now = clock()
  value = string.gsub(value, ',("fence":%d+,"until":%d+})$', string.format(',"asked":%.0f,%%1', now))
  redis.call('GETEX', KEYS[1]) -- changes nothing; see even_if_full
  redis.call('SET', KEYS[1], value, 'KEEPTTL')
end
return 1
