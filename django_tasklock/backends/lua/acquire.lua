-- Take the lock, if it is free or already held by this token; join the queue if asked to.
-- A holder that asks to follow an earlier one (6) replaces it: a token is good for one holder.
-- Value of a lock: {"token":"<32 hex>","holder":{...},"at":<ms>,"fence":<n>,"until":<ms>}, and before the fence
--                  "asked":<ms>, once somebody has asked the holder to give it back.
-- KEYS of every script that grants: 1 lock, 2 index by expiry, 3 fence counter, 4 queue, 5 seen
-- ARGV: 1 token, 2 ttl ms, 3 hold ms, 4 holder json, 5 queue entry ('' or absent: do not wait),
--       6 the token of the hold to follow ('' or absent: none), 7 rank in the queue ('' or absent: the last),
--       8 '1': it listens on its channel
-- Reply: granted: fence; busy: {ms left (-1: no expiry), value, now ms, rank if it waits}
--
-- Each command of a script costs more than all the rest of it together, and functions are made where a script comes by,
-- each time: so what decides nearly always stands first, in as few commands as it takes. Nobody has it, nobody waits:
local call, key = redis.call, KEYS[1]
if call('EXISTS', key, KEYS[4]) == 0 then
  local time = call('TIME')
  local micros = time[1] .. string.sub('000000', #time[2] + 1) .. time[2]
  local last = redis.pcall('SET', KEYS[3], micros, 'GET') -- an error: the server's memory is full, see even_if_full
  if not last or type(last) == 'string' and #last == #micros and last < micros then
    local at, number = string.sub(micros, 1, -4), tonumber(micros)
    call('SET', key, '{"token":"' .. ARGV[1] .. '","holder":' .. ARGV[4] .. ',"at":' .. at .. ',"fence":' .. micros ..
      ',"until":' .. string.format('%.0f', at + ARGV[3]) .. '}', 'PX', ARGV[2])
    call('ZADD', KEYS[2], string.format('%.0f', at + ARGV[2]), key)
    if number % 64 == 0 then
      -- use: lapsed
      forget_lapsed(KEYS[2], tonumber(at))
    end
    return number
  end
  if type(last) == 'string' then call('SET', KEYS[3], last) end -- the clock was set back
end
-- use: clock fence grant
local value, head = call('GET', key)
if not value then
  head = call('ZPOPMIN', KEYS[4]) -- who waits comes first; also a write that a full server allows
  if not head[1] then
    local now, micros = clock()
    return grant(tick(micros), now, ARGV[1], ARGV[2], ARGV[3], ARGV[4])
  end
end
-- use: owned values
local token, entry, former = ARGV[1], ARGV[5] or '', ARGV[6] or ''
local now, micros = clock()
if value and entry == '' and former == '' and not owned(value, token) and not foreign(value) then
  return {redis.call('PTTL', key), value, now}
end
-- use: waiters pass_on
if entry ~= '' then even_if_full(KEYS[4]) end
if not value then -- the holder died
  put_back(head)
  if entry ~= '' then join(token, entry, ARGV[7], ARGV[8], now, micros) end
  if pass_on(token) ~= token then
    value = redis.call('GET', key)
    if not value and entry ~= '' then quit(token, entry) end -- nobody may be told: who looks first has it
  end
  if not value then return grant(tick(micros), now, token, ARGV[2], ARGV[3], ARGV[4]) end
end
if owned(value, token) then
  redis.call('PEXPIRE', key, ARGV[2])
  redis.call('ZADD', KEYS[2], now + ARGV[2], key)
  if entry ~= '' then quit(token, entry) end
  return tonumber(string.match(value, ',"fence":(%d+),"until":%d+}$'))
end
if former ~= '' and owned(value, former) then
  return grant(tick(micros), now, token, ARGV[2], ARGV[3], ARGV[4])
end
local rank = entry ~= '' and join(token, entry, ARGV[7], ARGV[8], now, micros) or nil
local left = redis.call('PTTL', key)
if foreign(value) then -- whom it holds up shall find it listed
  redis.pcall('ZADD', KEYS[2], 'NX', left < 0 and '+inf' or now + left, key)
end
return {left, value, now, rank}
