"""Stores and their scripts: faults that must not pass."""

from tests.mutants.fault import Fault

FAULTS = [
    Fault(
        "backends/lua/_values.lua",
        "the token is not compared",
        "  return string.sub(value, 11, 11 + #token) == token .. '\"'",
        "  return true",
        "tests/contract/test_conformance.py -k redis",
    ),
    Fault(
        "backends/lua/_fence.lua",
        "a fence by the clock alone",
        "  if last and last >= tonumber(micros) then",
        "  if false then",
        "tests/locks/test_fence.py tests/contract/test_conformance.py",
    ),
    Fault(
        "backends/lua/_pass_on.lua",
        "a lock is handed to a dead waiter",
        "    if seen and is_alive(seen, channel, now) then",
        "    if seen then",
        "tests/locks/test_order.py tests/locks/test_waiting.py tests/locks/test_crash.py",
    ),
    Fault(
        "backends/lua/release.lua",
        "the entry of a released lock stays in the index",
        "redis.call('ZREM', KEYS[2], KEYS[1])\nreturn 1",
        "return 1",
        "tests/contract/test_conformance.py -k redis",
    ),
    Fault(
        "backends/lua/acquire.lua",
        "who waits is overtaken by who comes now",
        "  local whose = pass_on(token)\n  if not whose or whose == token then",
        "  local whose = nil\n  if not whose or whose == token then",
        "tests/locks/test_order.py tests/locks/test_waiting.py",
    ),
]
