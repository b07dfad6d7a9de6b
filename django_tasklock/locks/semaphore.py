"""``ConcurrencyLimiter``: at most N holders at once over all processes, each with a lease of its own.

It promises that of the callers with limit N never more than N have a permit *while their leases are intact*. A member
is a token in a set, renewed by the heartbeat: a plain counter would never learn of a member that died. The weakness is
that of a lock: a process that was paused past its lease is no member any more, but notices that only at its next step,
so for a moment one more may run.
"""

from __future__ import annotations

from collections.abc import Callable

from django_tasklock import context
from django_tasklock.backends import get_backend
from django_tasklock.backends.contract.stores import Permits
from django_tasklock.conf import DEFAULT, Duration, LeaseTime, OnUnavailable, Timeout, get_settings
from django_tasklock.counts import clean_kind
from django_tasklock.exceptions import TaskLockAcquireError, TaskLockError
from django_tasklock.host import Task
from django_tasklock.locks import events
from django_tasklock.locks.info import all_taken, lock_info
from django_tasklock.locks.lock import Acquirable
from django_tasklock.locks.parameters import LockParameters
from django_tasklock.names import clean
from django_tasklock.types import Busy, LimiterInfo, LockInfo, Record, fingerprint

MOST = 10_000
"""The greatest limit, because the store keeps each member by itself."""


def current_limiter() -> ConcurrencyLimiter:
    """Return the limiter of the innermost ``with`` block or decorated function that runs here.

    Raises ``TaskLockError`` where there is none, as in a thread that the body has started.
    """
    limiter: ConcurrencyLimiter = context.current(
        "limiter", "call this inside a block of a limiter or a function decorated with one"
    )
    return limiter


def check_limit(limit: object, name: str | None = None) -> int:
    """Return ``limit``. Raises ``TaskLockError`` unless it is a whole number from 1 to ``MOST``."""
    if type(limit) is not int or not 1 <= limit <= MOST:
        raise TaskLockError(f"a limit must be a whole number from 1 to {MOST}, not {limit!r}", name=name)
    return limit


class ConcurrencyLimiter(Acquirable):
    """At most ``limit`` permits of a name at once, over all threads, processes and machines.

    All threads and asyncio tasks of a process may share one object. A permit belongs to the thread or asyncio task
    that acquired it, and only that one can release it: one release too many is refused and never releases the permit
    of another. A caller that has a permit and acquires again keeps that one permit, so that a nested call never waits
    for itself; the last of as many releases releases it.

    ``acquire()`` and ``with`` wait for ``blocking_timeout`` seconds (``None``: no limit) and are woken in order of
    arrival where the store can do so; with ``blocking=False`` they do not wait. ``timeout``, ``lease``,
    ``on_unavailable``, ``on_lost``, ``kind`` and ``task`` are those of a ``TaskLock``.

    The limit is not stored: a caller is granted a permit if fewer than its own ``limit`` are taken. So a new limit
    needs no migration, and while old and new code run side by side each keeps to its own.

    Raises ``TaskLockError`` for options that cannot work, before anything is stored.
    """

    noun = "limiter"

    def __init__(
        self,
        name: str,
        limit: int,
        *,
        timeout: Timeout = DEFAULT,
        lease: LeaseTime = DEFAULT,
        blocking: bool | None = None,
        blocking_timeout: Duration | None = None,
        on_unavailable: OnUnavailable | None = "raise",
        on_lost: Callable[[str], object] | None = None,
        kind: str = "",
        task: Task | None = None,
    ) -> None:
        if blocking is None and blocking_timeout is None:
            blocking = True
        name = clean(name, get_settings().prefix)
        parameters = LockParameters.checked(name, timeout, lease, blocking, blocking_timeout, True, on_unavailable)
        super().__init__(name, parameters, on_lost, clean_kind(kind or name), task, "")
        self.limit = check_limit(limit, self.name)

    def _store(self) -> Permits:
        return get_backend().permits

    def _busy(self, answer: Busy) -> TaskLockAcquireError:
        return all_taken(self.name, self.limit, answer)

    def info(self) -> LimiterInfo:
        """Return its limit, its members and the number of waiters. Raises ``BackendUnavailable``."""
        return self._info(self._store().members(self.name))

    async def ainfo(self) -> LimiterInfo:
        """Do what ``info`` does, for coroutines."""
        return self._info(await self._store().amembers(self.name))

    def members(self) -> list[LockInfo]:
        """Return the members, the oldest first. Raises ``BackendUnavailable``."""
        return list(self.info().members)

    def remove(self, member: str) -> LockInfo | None:
        """Remove the member with this fingerprint and return it; ``None`` if there is none.

        Its body goes on without a permit and learns of the loss at its next heartbeat. Raises ``BackendUnavailable``.
        """
        store = self._store()
        for record in store.members(self.name):
            if fingerprint(record.token) == member:
                removed = store.remove(self.name, record.token)
                if removed is None:
                    return None
                events.forced(self.name, removed, self.noun)
                return lock_info(removed)
        return None

    def _info(self, records: list[Record]) -> LimiterInfo:
        waiting = records[0].waiting if records else 0
        return LimiterInfo(self.name, self.limit, waiting, tuple(map(lock_info, records)))
