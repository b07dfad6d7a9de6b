-- Book some slots one after the other, spaced, up to the first refusal.
-- KEYS, ARGV: see _rates.lua; 1 cost, 2 how many, 4 the longest wait, 5 'spaced'
-- Reply: a list of replies as of rate_reserve.lua
-- use: rates
local replies = {}
for number = 1, slot do
  replies[number] = reserve()
  if string.byte(replies[number]) ~= 49 then break end
end
return replies
