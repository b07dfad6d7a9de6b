-- Count an event that is part of no other script.
-- KEYS: 1 index by expiry
-- ARGV: 1 event, 2 kind
-- use: clock counts
count_at(KEYS[1], (clock()))
count(ARGV[1], ARGV[2])
return 1
