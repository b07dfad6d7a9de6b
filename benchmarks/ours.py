"""``TaskLock`` as the benchmark uses it: with and without a lease, object fresh and reused, sync and async."""

from __future__ import annotations

from typing import Any, ClassVar

from benchmarks.adapters import HOLD, Adapter, AsyncAdapter, Lock, Refused
from django_tasklock import ConcurrencyLimiter, TaskLock

__all__ = ["OURS"]

LEASED: dict[str, Any] = {}  # the defaults: a timeout of an hour, a lease of a minute
UNLEASED: dict[str, Any] = {"timeout": HOLD, "lease": None}


class Ours(Lock):
    """A lock object per use with the default lease, as ``with TaskLock(name):`` makes it."""

    label = "TaskLock"
    waits = "woken, handed the lock"
    options: ClassVar[dict[str, Any]] = LEASED

    def __init__(self, url: str, key: str) -> None:
        self.name = f"{type(self).__name__}:{key}"
        self.lock = self.new()

    def new(self) -> TaskLock | ConcurrencyLimiter:
        """The lock object for one acquire."""
        return TaskLock(self.name, **self.options)

    def try_acquire(self) -> bool:
        self.lock = self.new()
        return self.lock.acquire(blocking=False)

    def acquire(self) -> None:
        self.lock = self.new()
        if not self.lock.acquire(blocking=True, blocking_timeout=10):
            raise Refused(self.label)

    def release(self) -> None:
        self.lock.release()


class OursReused(Ours):
    """The same object for every pair."""

    label = "TaskLock, object reused"
    only_pairs = True

    def try_acquire(self) -> bool:
        return self.lock.acquire(blocking=False)


class OursUnleased(Ours):
    """No heartbeat: the key lives for the timeout."""

    label = "TaskLock lease=None"
    only_pairs = True
    options: ClassVar[dict[str, Any]] = UNLEASED


class OursUnleasedReused(OursReused):
    """Neither heartbeat nor a new object."""

    label = "TaskLock lease=None, object reused"
    options: ClassVar[dict[str, Any]] = UNLEASED


class OursLimiter(Ours):
    """A concurrency limiter that admits one, so that it can be put beside the locks."""

    label = "ConcurrencyLimiter"

    def new(self) -> ConcurrencyLimiter:
        return ConcurrencyLimiter(self.name, 1)


class OursAsync(AsyncAdapter):
    """``aacquire`` and ``arelease``, a lock object per use."""

    label = "TaskLock async"
    options: ClassVar[dict[str, Any]] = LEASED

    def __init__(self, url: str, key: str) -> None:
        super().__init__(url, key)
        self.name = f"{type(self).__name__}:{key}"

    async def pair(self) -> None:
        lock = TaskLock(self.name, **self.options)
        if not await lock.aacquire(blocking=False):
            raise Refused(f"{self.label}: a free lock was refused")
        await lock.arelease()


class OursAsyncUnleased(OursAsync):
    """The same without a heartbeat."""

    label = "TaskLock async lease=None"
    options: ClassVar[dict[str, Any]] = UNLEASED


OURS: list[type[Adapter]] = [
    Ours,
    OursReused,
    OursUnleased,
    OursUnleasedReused,
    OursLimiter,
    OursAsync,
    OursAsyncUnleased,
]
