-- Exchange some missed slots in one step.
-- KEYS, ARGV: see _rates.lua; 1 cost, 2 the slots, separated by spaces, 3 edition, 4 the longest wait, 5 as in
--       rate_resume.lua
-- Reply: a list of replies as of rate_reserve.lua
-- use: rates
local replies = {}
for old in string.gmatch(ARGV[2], '%d+') do
  slot = tonumber(old)
  replies[#replies + 1] = resume()
end
return replies
