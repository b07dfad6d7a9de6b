"""Health: faults that must not pass."""

from tests.mutants.fault import Fault

FAULTS = [
    Fault(
        "health/store.py",
        "a process that does not renew its leases is healthy",
        "is_renewing = not leases or (alive and not late)",
        "is_renewing = True",
        "tests/doors/test_health.py::TestLocks",
    ),
    Fault(
        "health/store.py",
        "a store that is down is healthy",
        '"healthy": condition is not None and bool(is_renewing)',
        '"healthy": bool(is_renewing)',
        "tests/doors/test_health.py::TestLocks",
    ),
    Fault(
        "health/store.py",
        "a clock that differs is not told",
        "abs(condition.ahead) - condition.latency / 2 > MAX_CLOCK_DIFFERENCE",
        "condition.ahead - condition.latency / 2 > MAX_CLOCK_DIFFERENCE",
        "tests/doors/test_health.py::TestLocks",
    ),
    Fault(
        "health/views.py",
        "a database that is down is healthy",
        'all(one["reachable"] for one in found.values())',
        "bool(found)",
        "tests/doors/test_health.py::TestDb",
    ),
    Fault(
        "health/probe.py",
        "each request of the public starts another thread",
        "future is None or (future.done() and time.monotonic() >= self._expires_at)",
        "True",
        "tests/doors/test_health.py::TestProbe",
    ),
    Fault(
        "health/messages.py",
        "messages of a worker that died are counted",
        "current = [mark for mark in marks if mark.is_current]",
        "current = list(marks)",
        "tests/doors/test_message_leases.py::TestHealth",
    ),
]
