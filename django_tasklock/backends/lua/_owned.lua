-- Whether a value is the lock of this token.
local function owned(value, token)
  return string.sub(value, 11, 11 + #token) == token .. '"'
end

