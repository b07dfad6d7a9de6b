-- Take the lock, if it is free or already held by this token; join the queue if asked to.
-- With the token of an earlier hold (6), replace that hold: each hold has a token of its own.
-- Value of a lock: {"token":"<32 hex>","holder":{...},"at":<ms>,"fence":<n>,"until":<ms>}, and before the fence
--                  "asked":<ms>, once its release was requested.
-- KEYS of the scripts that can grant: 1 lock, 2 index by expiry, 3 fence counter, 4 queue, 5 seen
-- ARGV: 1 token, 2 ttl ms, 3 hold ms, 4 holder json, 5 queue entry ('' or absent: do not wait),
--       6 the token of the hold to follow ('' or absent: none), 7 rank in the queue ('' or absent: the last),
--       8 '1': it is subscribed to its channel
-- Reply: granted: fence, or {fence, expired} unless that is 0;
--        busy: {ms left (-1: no expiry), value, now ms, expired, rank if it waits}.
--        expired: 1 if the lock was found to have ended without a release, else 0
--
-- Each command costs more than all the rest of a script together, and functions are created whenever a script reaches
-- their definition: so the usual case comes first, with as few commands as possible. A lock that is held, or whose
-- lease ran out, is in the index; a lock that is not in the index and has no key has no waiters.
local call, key = redis.call, KEYS[1]
local time = call('TIME')
local micros = time[1] .. string.sub('000000', #time[2] + 1) .. time[2]
local at, number = string.sub(micros, 1, -4), tonumber(micros)
local ms = math.floor(number / 1000)
-- An error: the server's memory is full, see even_if_full. A waiter in the queue must leave it, so not here.
if (ARGV[7] or '') == '' and redis.pcall('ZADD', KEYS[2], 'NX', string.format('%d', ms + ARGV[2]), key) == 1 then
  local last = call('SET', KEYS[3], micros, 'GET')
  if not last or #last == #micros and last < micros then
    local value = '{"token":"' .. ARGV[1] .. '","holder":' .. ARGV[4] .. ',"at":' .. at .. ',"fence":' .. micros ..
      ',"until":' .. string.format('%d', ms + ARGV[3]) .. '}'
    if call('SET', key, value, 'NX', 'PX', ARGV[2]) then
      if number % 64 == 0 then
        -- use: lapsed
        forget_lapsed(KEYS[2], ms)
      end
      return number
    end
  else
    call('SET', KEYS[3], last) -- the clock was set back
  end
  call('ZREM', KEYS[2], key)
end
local value, head, expired = call('GET', key), nil, 0
if value and (ARGV[5] or '') == '' and (ARGV[6] or '') == '' and string.find(value, '^{"token":"[^"]+"')
  and string.sub(value, 11, 11 + #ARGV[1]) ~= ARGV[1] .. '"' then -- held by another token, and this caller does not wait
  return {call('PTTL', key), value, ms, 0}
end
-- use: clock fence grant
local function granted(fence)
  return expired > 0 and {fence, expired} or fence
end
if not value then
  head = call('ZPOPMIN', KEYS[4]) -- waiters come first; also a write that a full server allows
  if call('ZSCORE', KEYS[2], key) then expired = 1 end
  if not head[1] then
    local now, micros = clock()
    return granted(grant(tick(micros), now, ARGV[1], ARGV[2], ARGV[3], ARGV[4]))
  end
end
-- use: owned values
local token, entry, former = ARGV[1], ARGV[5] or '', ARGV[6] or ''
local now, micros = clock()
-- use: waiters pass_on
if entry ~= '' then even_if_full(KEYS[4]) end
if not value then -- the holder died
  put_back(head)
  if entry ~= '' then join_queue(token, entry, ARGV[7], ARGV[8], now, micros) end
  local whose = pass_on(token)
  if whose ~= token then
    value = redis.call('GET', key)
    if not value and entry ~= '' then leave_queue(token, entry) end -- no waiter can be woken: the first to poll takes it
  end
  if not value then
    return granted(grant(tick(micros), now, token, ARGV[2], ARGV[3], ARGV[4]))
  end
end
if owned(value, token) then
  redis.call('PEXPIRE', key, ARGV[2])
  redis.call('ZADD', KEYS[2], now + ARGV[2], key)
  if entry ~= '' then leave_queue(token, entry) end
  return tonumber(string.match(value, ',"fence":(%d+),"until":%d+}$'))
end
if former ~= '' and owned(value, former) then
  return grant(tick(micros), now, token, ARGV[2], ARGV[3], ARGV[4])
end
local rank = entry ~= '' and join_queue(token, entry, ARGV[7], ARGV[8], now, micros) or nil
local left = redis.call('PTTL', key)
if foreign(value) then -- add it to the index, so that it is listed
  redis.pcall('ZADD', KEYS[2], 'NX', left < 0 and '+inf' or now + left, key)
end
return {left, value, now, expired, rank}
