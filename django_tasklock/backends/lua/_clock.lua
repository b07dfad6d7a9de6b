-- The time in ms since 1970, and in microseconds as text: tostring() of a Lua number has only 14 digits.
local function clock()
  local t = redis.call('TIME')
  local micros = t[1] .. string.sub('000000', #t[2] + 1) .. t[2]
  return tonumber(string.sub(micros, 1, -4)), micros
end

