"""The locks that the plain functions have acquired in this process, so that a name is enough to release one."""

from __future__ import annotations

import threading
from itertools import count

from django_tasklock.conf import LeaseTime, Timeout
from django_tasklock.locks.lock import TaskLock
from django_tasklock.locks.ownership import Acquisitions, Owner, current_owner

MOST_LAPSED = 1000  # locks that have expired without a release and are remembered


class ProcessLock(TaskLock):
    """A lock that belongs to the process: any thread or asyncio task may release it."""

    def __init__(self, name: str, timeout: Timeout, lease: LeaseTime) -> None:
        super().__init__(name, timeout=timeout, lease=lease, on_unavailable=None)
        self.caller = current_owner()
        """The thread or asyncio task that has acquired it."""
        self.number = 0
        """Its place in the order of acquisition."""

    def _new_acquisitions(self) -> Acquisitions:
        return Acquisitions(owner=Owner())


class ProcessLocks:
    """The process's locks by name. Bounded: of those that have expired the oldest are forgotten."""

    def __init__(self) -> None:
        self._mutex = threading.RLock()
        self.locks: dict[str, list[ProcessLock]] = {}
        """The locks of each name, the latest last."""
        self._numbers = count(1)
        self._count = 0
        self._prune_at = 2 * MOST_LAPSED

    def __len__(self) -> int:
        return self._count

    def add(self, lock: ProcessLock) -> None:
        """Add a lock that was just acquired."""
        with self._mutex:
            lock.number = next(self._numbers)
            self.locks.setdefault(lock.name, []).append(lock)
            self._count += 1
            if self._count >= self._prune_at:
                self.prune()

    def find(self, name: str) -> ProcessLock | None:
        """Return the caller's own lock of this name, or else the latest.

        The caller's own comes first, so that a caller that has lost its lock does not release its successor's.
        """
        caller = current_owner()
        with self._mutex:
            locks = self.locks.get(name)
            if not locks:
                return None
            for lock in reversed(locks):
                if lock.caller is caller:
                    return lock
            return locks[-1]

    def discard(self, lock: ProcessLock) -> bool:
        """Remove a lock. Return False if it is not there any more."""
        with self._mutex:
            known = lock in self.locks.get(lock.name, ())
            if known:
                self._forget(lock)
            return known

    def clear(self) -> None:
        """Remove all locks."""
        with self._mutex:
            self.locks.clear()
            self._count = 0
            self._prune_at = 2 * MOST_LAPSED

    def _forget(self, lock: ProcessLock) -> None:
        locks = self.locks[lock.name]
        locks.remove(lock)
        self._count -= 1
        if not locks:
            del self.locks[lock.name]

    def prune(self) -> None:
        """Remove the oldest of the locks that have expired."""
        lapsed = [lock for locks in self.locks.values() for lock in locks if not lock.held]
        lapsed.sort(key=lambda lock: lock.number)
        for lock in lapsed[:-MOST_LAPSED]:
            self._forget(lock)
        self._prune_at = 2 * max(MOST_LAPSED, self._count)


process_locks = ProcessLocks()
"""The locks of this process."""


def forget() -> None:
    """Forget the locks that the plain functions have acquired in this process."""
    process_locks.clear()


def after_fork() -> None:
    """Begin empty, in place: other modules have imported the object. A thread of the parent may hold the mutex."""
    process_locks.__init__()  # type: ignore[misc]
