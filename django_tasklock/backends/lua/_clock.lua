-- Now in ms since 1970, and in microseconds as text: Lua's numbers become text with 14 digits.
local function clock()
  local t = redis.call('TIME')
  local micros = t[1] .. string.sub(1000000 + t[2], 2)
  return tonumber(string.sub(micros, 1, -4)), micros
end

