-- acquire.lua on one of several instances: with a fence that the caller proposes to all of them, in the holder.
-- Refused if a fence as great was granted here before, and by an instance that came back empty.
-- KEYS: as acquire.lua, then the marker (quorum_state.lua), the greatest fence of the names that share it
-- ARGV: as acquire.lua, then the proposal, 'raise': replace the fence if the token has the lock with an earlier one
-- Reply: granted: its fence here; busy: as acquire.lua; {'behind', the greatest fence}; 'empty';
--        {'abstains', ms until it votes}
local function take()
-- (acquire.lua)
end
local greatest, marker = table.remove(KEYS), table.remove(KEYS)
local mode, proposal = table.remove(ARGV), table.remove(ARGV)
local known = redis.call('MGET', marker, greatest, KEYS[1])
local ends, floor = string.match(known[1] or '', '^(%d+) (%d+) ')
if not ends then return 'empty' end
if ends ~= '0' then
  local time = redis.call('TIME')
  local left = tonumber(ends) - time[1] * 1000 - math.floor(time[2] / 1000)
  if left > 0 then return {'abstains', left} end
end
local value, last = known[3], math.max(tonumber(known[2] or 0), tonumber(floor))
local had
if value and string.sub(value, 11, 11 + #ARGV[1]) == ARGV[1] .. '"' then
  had = tonumber(string.match(value, '"vote":(%d+)') or 0)
end
local behind = last >= tonumber(proposal)
if had and had > 0 and mode == '' then
  local reply = take()
  return (type(reply) == 'number' or #reply == 2) and had or reply
end
if behind and (had or not value or (ARGV[6] or '') ~= '') then return {'behind', string.format('%.0f', last)} end
local reply = take()
if type(reply) ~= 'number' and #reply > 2 then return reply end
if had then -- it was handed over without a fence of its own, or needs a greater one
  value = redis.call('GET', KEYS[1])
  redis.call('SET', KEYS[1], (string.gsub(value, '"vote":%d+', '"vote":' .. proposal, 1)), 'KEEPTTL')
end
redis.call('SET', greatest, proposal)
return tonumber(proposal)
