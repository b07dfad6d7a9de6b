-- Write what was changed; the last part of a script that changes a book.
local MONTH = 2592000000000
if dirty.idx then
  for i = 1, ARGV[2] == '' and 1 or 2 do -- a tenant's limiter, too: nobody else may have used it
    local index = KEYS[3 + i]
    redis.call('ZADD', index, text(time), ARGV[i])
    if time % 64 == 0 then redis.call('ZREMRANGEBYSCORE', index, '-inf', text(time - MONTH)) end
    redis.call('PEXPIRE', index, text(MONTH / 1000))
  end
end
local fields = stored_terms == terms and {} or {'terms', terms}
for key in pairs(dirty) do
  fields[#fields + 1] = key
  fields[#fields + 1] = text(meta[key])
end
if fields[1] then redis.call('HSET', KEYS[1], unpack(fields)) end
-- The keys expire somewhat later than they have to, so that not each call sets that.
local left = math.ceil((math.max(get('last'), now()) + get('off') + longest_window - time) / 1000) + 1000
renew = renew or dirty.share or redis.call('PTTL', KEYS[1]) < left
for _, rate in ipairs(rates) do renew = renew or redis.call('PTTL', rate.ring) < left end
if renew then
  left = left + math.max(1000, math.floor(left / 4))
  for i = 2, #KEYS do
    if i ~= 4 and i ~= 5 then redis.call('PEXPIRE', KEYS[i], left) end
  end
  redis.call('PEXPIRE', KEYS[1], get('share') == FULL_SHARE and left or math.max(left, 86400000))
end
