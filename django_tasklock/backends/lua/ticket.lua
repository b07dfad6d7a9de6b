-- Draw a number that is greater than any drawn before.
-- KEYS: 1 fence counter
-- Reply: the number
local _, t = clock()
return tick(KEYS[1], t)
