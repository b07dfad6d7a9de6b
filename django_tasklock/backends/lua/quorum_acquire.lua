-- Take the lock on one of several instances, with a fence that the caller proposes to all of them.
-- Refused if a fence as great was granted here before, and by an instance that came back empty.
-- The value of a lock is that of acquire.lua.
-- KEYS: 1 lock, 2 index by expiry, 3 marker (quorum_state.lua), 4 the greatest fence of the names that share it
-- ARGV: 1 token, 2 ttl ms, 3 hold ms, 4 holder json, 5 the token of the hold to follow ('': none), 6 proposal,
--       7 'raise': replace the fence if the token has the lock with an earlier one
-- Reply: granted: its fence here; busy: {ms left (-1: no expiry), value, now ms}; {'behind', the greatest fence};
--        'empty'; {'abstains', ms until it votes}
-- use: values clock
local token, ttl, hold, holder, former, proposal = unpack(ARGV)
local now = clock()
local ends, floor = string.match(redis.call('GET', KEYS[3]) or '', '^(%d+) (%d+) ')
if not ends then return 'empty' end
if tonumber(ends) > now then return {'abstains', ends - now} end
local value = redis.call('GET', KEYS[1])
local mine = value and owned(value, token)
if value and not mine and (former == '' or not owned(value, former)) then
  local left = redis.call('PTTL', KEYS[1])
  if foreign(value) then -- add it to the index, so that it is listed
    redis.pcall('ZADD', KEYS[2], 'NX', left < 0 and '+inf' or now + left, KEYS[1])
  end
  return {left, clipped(value), now}
end
if mine and ARGV[7] == '' then
  redis.call('PEXPIRE', KEYS[1], ttl)
  redis.call('ZADD', KEYS[2], now + ttl, KEYS[1])
  return tonumber(string.match(value, ',"fence":(%d+),"until":%d+}$'))
end
local last = math.max(tonumber(redis.call('GET', KEYS[4]) or 0), tonumber(floor))
if last >= tonumber(proposal) then return {'behind', string.format('%.0f', last)} end
even_if_full(KEYS[2])
if mine then
  value = string.gsub(value, '"fence":%d+(,"until":%d+})$', '"fence":' .. proposal .. '%1')
else
  value = '{"token":"' .. token .. '","holder":' .. holder .. ',"at":' .. now .. ',"fence":' .. proposal ..
    ',"until":' .. string.format('%.0f', now + hold) .. '}'
end
redis.call('SET', KEYS[1], value, 'PX', ttl)
redis.call('ZADD', KEYS[2], now + ttl, KEYS[1])
redis.call('SET', KEYS[4], proposal)
if proposal % 64 == 0 then
  -- use: lapsed
  forget_lapsed(KEYS[2], now)
end
return tonumber(proposal)
