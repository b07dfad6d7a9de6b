"""Help for tests of code that uses locks, limits and once-tasks.

    TASKLOCK = {"BACKEND": "django_tasklock.backends.memory.MemoryBackend"}  # in the settings of the tests

    @pytest.fixture(autouse=True)
    def clean_locks():
        yield
        testing.reset()

    def test_a_report_is_written_again_after_a_day():
        write_report()
        testing.advance(timedelta(days=1))
        assert write_report() == "written"

Nothing here touches what other processes see: a Redis or a database is emptied as you empty it otherwise.
"""

from __future__ import annotations

import contextlib
import sys

from django_tasklock.backends import get_backend
from django_tasklock.backends.memory import MemoryBackend, store
from django_tasklock.conf import Duration, milliseconds
from django_tasklock.exceptions import BackendUnavailable, TaskLockError
from django_tasklock.locks import events
from django_tasklock.locks.lock import TaskLock
from django_tasklock.locks.semaphore import ConcurrencyLimiter

__all__ = ["REMEMBERING", "advance", "forget", "lose", "reset"]

REMEMBERING = (
    "django_tasklock.locks.heartbeat",
    "django_tasklock.locks.registry",
    "django_tasklock.locks.lease",
    "django_tasklock.locks.takes",
    "django_tasklock.db.transactions",
    "django_tasklock.rates.watch",
    "django_tasklock.rates.terms",
    "django_tasklock.rates.outage",
    "django_tasklock.health.database",
    "django_tasklock.health.store",
    "django_tasklock.metrics",
)
"""Modules whose ``forget()`` is called, in this order, if they were imported."""


def reset() -> None:
    """Forget everything of this process, and empty the memory store: call it between two tests.

    That is ``forget()``, and every lock, permit, booking and waiter in the memory store, and the time that
    ``advance`` skipped. Decorated functions, registered guards and connections stay.

        >>> acquire_task_lock("report")
        True
        >>> testing.reset()
        >>> is_task_locked("report")
        False
    """
    forget()
    store.reset()


def forget() -> None:
    """Forget what this process has of locks, permits and limits, as if it had died and another had begun.

    Nobody renews the leases any more, gives them back, or remembers their tokens; outages, terms and clocks that rate
    limiters have heard of are unknown again, and counts are zero. What the store has stays until its lease ends: a
    lock is busy for that long, for this process, too. Only who asks whether the holder's process lives, as the sweep
    does, is told that it does, because it does.

        >>> lock = TaskLock("report", lease=60)
        >>> lock.acquire()
        True
        >>> testing.forget()
        >>> lock.held, is_task_locked("report")
        (False, True)
        >>> testing.advance(61)
        >>> is_task_locked("report")
        False
    """
    for name in REMEMBERING:
        module = sys.modules.get(name)
        if module is not None:
            module.forget()


def lose(lock: TaskLock | ConcurrencyLimiter, reason: str = "a test says so") -> None:
    """Let the caller's lease of ``lock`` be lost, as if it had not been renewed in time, for this ``reason``.

    The store forgets it, so that others can take it; the holder learns at once that it has lost it: ``on_lost`` and
    ``signals.lock_lost`` have been called when this returns. With every store, out of synchronous code.

    Raises ``TaskLockError`` if the caller does not hold it.

        >>> with TaskLock("report") as lock:
        ...     testing.lose(lock)
        ...     lock.ensure_held()
        Traceback (most recent call last):
        django_tasklock.exceptions.LockLost: lock 'report' is lost: a test says so
    """
    lease = lock.lease
    if lease is None or lease.lost:
        raise TaskLockError(f"{lock.noun} {lock.name!r} is not held by who would lose it", name=lock.name)
    first = lease.lose(reason)  # before the store forgets it: a renewal must not be the one to notice
    with contextlib.suppress(BackendUnavailable):  # where it cannot be asked, nobody else can take it either
        lease.backend.release(lease.name, lease.token)
    if first:
        events.lost(lease, reason)


def advance(seconds: Duration) -> None:
    """Let time pass on the clock of the memory store: leases end, windows of rate limits pass, who waits looks again.

    Raises ``TaskLockError`` for zero and negative durations, and where another store is in force, whose clock is its
    server's. The clock of this process is not moved: it learns that it has lost a lock at the next renewal.

        >>> acquire_task_lock("report", timeout=300)
        True
        >>> testing.advance(301)
        >>> acquire_task_lock("report", timeout=300)
        True
    """
    duration = milliseconds(seconds, "seconds")
    if not isinstance(get_backend(), MemoryBackend):
        kind = type(get_backend()).__name__
        raise TaskLockError(f"advance() moves the clock of the memory store, but the store in force is a {kind}")
    store.advance(duration / 1000)
