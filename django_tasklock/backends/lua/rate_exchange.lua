-- Exchange some slots that were missed, in one step.
-- KEYS, ARGV: see _rates.lua; 1 cost, 2 their slots, with blanks between them, 3 edition, 4 how long it may take, 5 as of
--       rate_resume.lua
-- Reply: a list of replies as of rate_reserve.lua
-- use: rates
local replies = {}
for old in string.gmatch(ARGV[2], '%d+') do
  slot = tonumber(old)
  replies[#replies + 1] = resume()
end
return replies
