-- Set the share of the limit; if it is raised, callers that wait book again.
-- KEYS, ARGV: see _rates.lua; share, in millionths
-- Reply: 1
-- use: rates rate_change rate_first_slot rate_ahead
if arguments[1] > get('share') then drop_ahead() end
adjust(arguments[1])
-- use: rate_write
return 1
