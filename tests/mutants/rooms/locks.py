"""Leases and locks: faults that must not pass."""

from tests.mutants.fault import Fault

FAULTS = [
    Fault(
        "locks/lease.py",
        "a lease is counted from the answer and not from the request",
        "        self.deadline = sent + ttl / 1000 - ROUNDING",
        "        self.deadline = monotonic() + ttl / 1000 - ROUNDING",
        "tests/locks/test_lease.py tests/locks/test_heartbeat.py",
    ),
    Fault(
        "locks/lock.py",
        "a held lock can be taken again without being asked for that",
        "        if not self.parameters.reentrant:",
        "        if False:",
        "tests/locks/test_ownership.py",
    ),
    Fault(
        "locks/lock.py",
        "a grant that came too late counts",
        "        if monotonic() >= lease.deadline:",
        "        if False:",
        "tests/locks",
    ),
    Fault(
        "locks/lock.py",
        "a store that refuses lets bodies run",
        '        if action == "run" and not error.down:',
        "        if False:",
        "tests/locks/test_unavailable.py tests/locks/test_refused.py",
    ),
    Fault(
        "locks/heartbeat.py",
        "a released lock is renewed on",
        "        self._held.pop(lease.token, None)\n        self.reconciler",
        "        self.reconciler",
        "tests/locks/test_heartbeat.py",
    ),
]
