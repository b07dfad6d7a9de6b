"""Simulated other processes: one that holds a lock, one that waits for it, and those that have used up a limit."""

from __future__ import annotations

import json
import secrets
import weakref
from typing import Self

from django_tasklock.backends import get_backend
from django_tasklock.backends.contract.stores import LeaseStore
from django_tasklock.backends.memory import MemoryBackend
from django_tasklock.backends.memory.waiter import MemoryWaiter
from django_tasklock.conf import DEFAULT, Duration, milliseconds, spans
from django_tasklock.exceptions import RateLimitExceeded, TaskLockError
from django_tasklock.locks.semaphore import ConcurrencyLimiter
from django_tasklock.rates.limiter import RateLimiter
from django_tasklock.rates.reservation import Reservation
from django_tasklock.testing.named import Lockable, name_of
from django_tasklock.types import AcquireRequest, Busy, Grant, Renewal, monotonic

ELSEWHERE = "another-host"


class HeldLock:
    """A lock that another, living process holds. See ``lock_held``. As a context manager it releases the lock."""

    def __init__(self, backend: LeaseStore, request: AcquireRequest, lease: int) -> None:
        self.backend = backend
        self.name = request.name
        self.token = request.token
        self._lease = lease

    def release(self) -> None:
        """Let the holder release the lock. The first waiter gets it."""
        self.backend.release(self.name, self.token)

    def kill(self) -> None:
        """Let the holder die. The lock is free once its lease has ended: see ``advance``."""
        self.backend.renew([Renewal(self.name, self.token, self._lease)])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *how: object) -> None:
        self.release()


class LockWaiter:
    """Another process that waits for a lock. See ``lock_waiting``. As a context manager it ends the wait."""

    def __init__(self, backend: MemoryBackend, request: AcquireRequest) -> None:
        self.name = request.name
        self.token = request.token
        self._backend = backend
        self._place = MemoryWaiter(backend, request, backend.table.queues)
        self._place.asleep = True  # a release hands the lock to a waiter that sleeps
        self._place.acquire()

    @property
    def granted(self) -> bool:
        """Whether the lock was passed on to it."""
        record = self._backend.get(self.name)
        return record is not None and record.token == self.token

    def leave(self) -> None:
        """Leave the queue, or release the lock."""
        self._place.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *how: object) -> None:
        self.leave()


class UsedLimit:
    """A limit that other processes have used up. See ``limit_reached``. As a context manager it frees the limit."""

    def __init__(self, limiter: RateLimiter | ConcurrencyLimiter) -> None:
        self.limiter = limiter
        self._permits: list[str] = []
        if isinstance(limiter, RateLimiter):
            _use_up(limiter)
        else:
            self._permits = _take_all(limiter)

    def release(self) -> None:
        """Let the others release their permits. A rate limit is reset."""
        if isinstance(self.limiter, RateLimiter):
            self.limiter.reset()
        for token in self._permits:
            get_backend().permits.release(self.limiter.name, token)
        self._permits = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *how: object) -> None:
        self.release()


_held: weakref.WeakValueDictionary[str, HeldLock] = weakref.WeakValueDictionary()


def lock_held(
    lock: Lockable,
    *,
    timeout: Duration = 3600,
    lease: Duration = 60,
    host: str = ELSEWHERE,
    pid: int = 1,
    task: str = "",
) -> HeldLock:
    """Let another process hold ``lock``, a name or a lock object, from now on.

    It holds the lock until it is released or killed, or for ``timeout`` seconds. ``lease``: for how many seconds the
    lock stays busy after a kill. ``host``, ``pid`` and ``task`` describe the holder. It works with every store. Raises
    ``TaskLockError`` if the lock is held already.

        >>> with testing.lock_held("report"):
        ...     acquire_task_lock("report")
        False
        >>> acquire_task_lock("report")
        True
    """
    name = name_of(lock)
    hold, ttl = spans(timeout, lease, name)
    who = json.dumps({"host": host, "pid": pid, "boot": "", "task": task, "task_id": task and "1"})
    request = AcquireRequest(name, secrets.token_hex(16), hold, hold, who)
    backend = get_backend()
    answer = backend.acquire(request)
    if isinstance(answer, Busy):
        by = "" if answer.record is None else f" by {answer.record.holder}"
        raise TaskLockError(f"lock {name!r} is held already{by}", name=name)
    holder = HeldLock(backend, request, ttl or hold)
    _held[holder.token] = holder
    return holder


def lock_waiting(lock: Lockable, *, timeout: Duration = 3600) -> LockWaiter:
    """Let another process wait for ``lock``, behind its other waiters, in the memory store.

    A release passes the lock on to it if it is the first waiter; it holds the lock for ``timeout`` seconds then. Raises
    ``TaskLockError`` if the lock is free, so that there is nothing to wait for.

        >>> holder, waiter = testing.lock_held("report"), testing.lock_waiting("report")
        >>> holder.release()
        >>> waiter.granted
        True
    """
    name, backend = name_of(lock), get_backend()
    if not isinstance(backend, MemoryBackend):
        raise TaskLockError(
            f"lock_waiting() waits in the memory store, but the store in force is a {type(backend).__name__}"
        )
    if backend.get(name) is None:
        raise TaskLockError(f"lock {name!r} is free: there is nothing to wait for", name=name)
    hold = milliseconds(timeout, "timeout", name=name)
    who = json.dumps({"host": ELSEWHERE, "pid": 1})
    return LockWaiter(backend, AcquireRequest(name, secrets.token_hex(16), hold, hold, who, whole=True))


def limit_reached(limiter: RateLimiter | ConcurrencyLimiter | str) -> UsedLimit:
    """Let other processes use up what ``limiter``, a limiter or the name of one in ``RATE_LIMITS``, allows now.

    The next call has to wait, or is refused: for a rate until its window has passed, for permits until one is released.
    It works with every store that has limits. After the block a rate limit is reset.

        >>> with testing.limit_reached(RateLimiter("mail", "100/m")):
        ...     RateLimiter("mail", "100/m").try_acquire() is None
        True
    """
    return UsedLimit(RateLimiter(limiter) if isinstance(limiter, str) else limiter)


def find(name: str) -> HeldLock | None:
    """Return the holder that ``lock_held`` has made, if it has the lock."""
    record = get_backend().get(name)
    return None if record is None else _held.get(record.token)


def _use_up(limiter: RateLimiter) -> None:
    terms = limiter.terms
    cost = min(rate.limit for rate in terms.rates)
    while cost:  # in few requests: as much at once as the limit still allows
        try:
            Reservation(limiter, cost, monotonic()).book()  # at the limit itself, not at that of a tenant
        except RateLimitExceeded:
            cost //= 2


def _take_all(limiter: ConcurrencyLimiter) -> list[str]:
    permits, taken = get_backend().permits, list[str]()
    hold, _ = spans(DEFAULT, None, limiter.name)
    who = json.dumps({"host": ELSEWHERE, "pid": 1, "limit": limiter.limit})
    while True:
        token = secrets.token_hex(16)
        answer = permits.acquire(AcquireRequest(limiter.name, token, hold, hold, who, limit=limiter.limit))
        if not isinstance(answer, Grant):
            return taken
        taken.append(token)
