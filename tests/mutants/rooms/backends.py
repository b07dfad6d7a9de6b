"""Stores and their scripts: faults that must not pass."""

from tests.mutants.fault import Fault

LOCKS = "tests/contract/test_conformance.py::TestLocks"
WAKING = "tests/contract/test_conformance.py::TestWaking"

FAULTS = [
    Fault(
        "backends/lua/_values.lua",
        "the token is not compared",
        "  return string.sub(value, 11, 11 + #token) == token .. '\"'",
        "  return true",
        f"{LOCKS} -k redis",
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
        "tests/contract/test_redis_keys.py tests/contract/test_lost_replies.py",
    ),
    Fault(
        "backends/lua/release.lua",
        "the entry of a released lock stays in the index",
        "redis.call('ZREM', KEYS[2], KEYS[1])\nreturn 1",
        "return 1",
        "tests/contract/test_expired.py -k redis",
    ),
    Fault(
        "backends/lua/acquire.lua",
        "who waits is overtaken by who comes now",
        "  local whose = pass_on(token)\n  if not whose or whose == token then",
        "  local whose = nil\n  if not whose or whose == token then",
        "tests/contract/test_expired.py -k redis",
    ),
    Fault(
        "backends/lua/permit_acquire.lua",
        "one permit too many",
        "  free = redis.call('ZCARD', KEYS[1]) < tonumber(limit)",
        "  free = redis.call('ZCARD', KEYS[1]) <= tonumber(limit)",
        "tests/contract/test_conformance.py::TestPermits -k redis",
    ),
    Fault(
        "backends/lua/rate_cancel.lua",
        "a slot is given back by who does not have it any more",
        "local owned = is_owned(slot, edition)",
        "local owned = true",
        "tests/contract/test_conformance.py::TestRates -k redis",
    ),
    Fault(
        "backends/database/rows.py",
        "who loses the race for a row has it too",
        "    return rows_of(alias).filter(key=key, token=row.token, fence=row.fence, expires_at=row.expires_at)",
        "    return rows_of(alias).filter(key=key)",
        "tests/contract/test_database_backend.py::TestRaces",
    ),
    Fault(
        "backends/database/permits.py",
        "two that count at once have the last permit both",
        "            elif not limiters(alias).filter(key=key, fence=last).update(fence=fence):",
        "            elif not limiters(alias).filter(key=key).update(fence=fence):",
        "tests/contract/test_database_backend.py -k permits",
    ),
    Fault(
        "backends/redis/client.py",
        "a certificate that does not verify is an outage, in which bodies run without their locks",
        "        if concerns_us_alone(error, handled):",
        "        if False:",
        "tests/contract/test_redis_compat.py -k outage",
    ),
    Fault(
        "backends/redis/errors.py",
        "what the caller handles makes a mistake of an outage",
        "        if one is handled:",
        "        if False:",
        "tests/contract/test_redis_compat.py -k outage",
    ),
    Fault(
        "backends/quorum/asking.py",
        "a majority that refuses only this client is down",
        "            down=len(answers) - down < self.needed,",
        "            down=bool(down),",
        "tests/contract/test_quorum.py -k down_is",
    ),
    Fault(
        "backends/memory/leases.py",
        "two have one lock",
        "            elif len(live) < request.limit and name not in table.queues:",
        "            elif len(live) <= request.limit and name not in table.queues:",
        f"{LOCKS} -k memory",
    ),
    Fault(
        "backends/cache/backend.py",
        "a holder whose lease may be over deletes the next one's entry",
        "self.leases.certain(token, MARGIN) is not False and cache.delete(key)",
        "cache.delete(key)",
        "tests/contract/test_cache_backend.py::TestLocalDeadline",
    ),
    Fault(
        "backends/ledger/book.py",
        "one call too many in a window",
        "            if total + units <= limit or total <= 0:",
        "            if total + units <= limit + 1 or total <= 0:",
        "tests/contract/test_rate_ledger.py -m 'not slow'",
    ),
    Fault(
        "backends/quorum/ballot.py",
        "a minority grants the lock",
        "        return fence if times >= self.needed else None",
        "        return fence",
        "tests/contract/test_quorum.py::TestEmptyInstances",
    ),
    Fault(
        "backends/quorum/recovery.py",
        "an instance that forgot a lock votes at once",
        "        if len(empty) == len(self._instances.of):",
        "        if empty:",
        "tests/contract/test_quorum.py::TestEmptyInstances",
    ),
    Fault(
        "backends/contract/several.py",
        "of several locks, those before the busy one stay taken",
        "                        if other != name:",
        "                        if other > name:",
        "tests/contract/test_several.py -k memory",
    ),
]
