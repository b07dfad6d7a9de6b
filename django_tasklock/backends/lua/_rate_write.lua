-- Write what was changed; the last part of a script that changes a book.
if dirty.idx then
  redis.call('ZADD', KEYS[4], text(time), ARGV[1])
  if time % 64 == 0 then redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', text(time - 2592000000000)) end
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
    if i ~= 4 then redis.call('PEXPIRE', KEYS[i], left) end
  end
  redis.call('PEXPIRE', KEYS[1], get('share') == FULL_SHARE and left or math.max(left, 86400000))
end
