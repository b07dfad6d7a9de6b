-- Drop entries from the index that expired more than a day ago, up to 128 at a time.
local function forget_lapsed(index, now)
  local old = redis.call('ZRANGEBYSCORE', index, '-inf', now - 86400000, 'LIMIT', 0, 128)
  if old[1] then redis.call('ZREM', index, unpack(old)) end
end
