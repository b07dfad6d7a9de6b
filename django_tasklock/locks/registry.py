"""What the plain functions took in this process, so that a name alone is enough to release it."""

from __future__ import annotations

import threading
from itertools import count

from django_tasklock.conf import LeaseTime, Timeout
from django_tasklock.locks.lock import TaskLock
from django_tasklock.locks.takes import Leases, Takes, leases_here

LAPSED = 1000  # locks that ended without a release, and are remembered all the same


class ProcessLock(TaskLock):
    """Belongs to the process, not to the thread or asyncio task that took it."""

    def __init__(self, name: str, timeout: Timeout, lease: LeaseTime) -> None:
        super().__init__(name, timeout=timeout, lease=lease)
        self.owner = leases_here()  # one such object for each thread and asyncio task
        self.number = 0

    def _new_takes(self) -> Takes:
        return Takes(own=Leases())


class ProcessLocks:
    """Locks by name, the latest last. Bounded: of those that lapsed the oldest are forgotten."""

    def __init__(self) -> None:
        self._mutex = threading.RLock()
        self.locks: dict[str, list[ProcessLock]] = {}
        """By name, the latest last."""
        self._numbers = count(1)
        self._count = 0
        self._prune_at = 2 * LAPSED

    def __len__(self) -> int:
        return self._count

    def add(self, lock: ProcessLock) -> None:
        """Remember what was acquired just now."""
        with self._mutex:
            lock.number = next(self._numbers)
            self.locks.setdefault(lock.name, []).append(lock)
            self._count += 1
            if self._count >= self._prune_at:
                self.prune()

    def find(self, name: str) -> ProcessLock | None:
        """Return the caller's own first: who took a lock and lost it must not release its successor's."""
        here = leases_here()
        with self._mutex:
            locks = self.locks.get(name)
            if not locks:
                return None
            for lock in reversed(locks):
                if lock.owner is here:
                    return lock
            return locks[-1]

    def discard(self, lock: ProcessLock) -> bool:
        """Forget a lock; False if it is not remembered any more."""
        with self._mutex:
            known = lock in self.locks.get(lock.name, ())
            if known:
                self._forget(lock)
            return known

    def clear(self) -> None:
        """Forget all locks."""
        with self._mutex:
            self.locks.clear()
            self._count = 0
            self._prune_at = 2 * LAPSED

    def _forget(self, lock: ProcessLock) -> None:
        locks = self.locks[lock.name]
        locks.remove(lock)
        self._count -= 1
        if not locks:
            del self.locks[lock.name]

    def prune(self) -> None:
        """Forget the oldest of those that lapsed."""
        lapsed = [lock for locks in self.locks.values() for lock in locks if not lock.held]
        lapsed.sort(key=lambda lock: lock.number)
        for lock in lapsed[:-LAPSED]:
            self._forget(lock)
        self._prune_at = 2 * max(LAPSED, self._count)


process_locks = ProcessLocks()
"""Those of this process."""


def forget() -> None:
    """Forget what the plain functions took in this process."""
    process_locks.clear()


def after_fork() -> None:
    """Begin empty, in place: others have imported it, and a mutex may be held by no thread of ours."""
    process_locks.__init__()  # type: ignore[misc]
