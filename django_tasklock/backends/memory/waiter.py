"""Waiting in the store of this process: a waiter sleeps on an event until a release hands the lock over."""

from __future__ import annotations

import contextlib
from bisect import bisect
from collections import deque

from django_tasklock.backends.contract.stores import Alarm, LeaseStore, Waiter
from django_tasklock.backends.memory.store import HANDOVER_TTL, QueuedWaiter, store
from django_tasklock.types import AcquireRequest, Busy, Grant, monotonic


class MemoryWaiter(Waiter):
    """A waiter in the queue of one lock or limiter. One that neither sleeps nor polls for a second is passed over."""

    def __init__(self, backend: LeaseStore, request: AcquireRequest, queues: dict[str, deque[QueuedWaiter]]) -> None:
        super().__init__(backend, request)
        self._queues = queues
        self._taken = False
        self._expired = 0  # found while it slept, and not returned yet
        self.seen = monotonic()
        self.since = 0
        self._alarm = Alarm()
        self.asleep = False

    @property
    def present(self) -> bool:
        """Whether the waiter is asleep or has polled within the last second."""
        return self.asleep or monotonic() < self.seen + HANDOVER_TTL / 1000

    def wake(self) -> None:
        """Wake the waiter if it is asleep."""
        self._alarm.ring()

    def acquire(self) -> Grant | Busy:
        with store.mutex:
            self.seen = monotonic()
            answer = self.backend.acquire(self.request)
            answer, self._expired = answer._replace(expired=answer.expired + self._expired), 0
            self._taken = isinstance(answer, Grant)
            if not self._taken:
                queue = self._queues.setdefault(self.request.name, deque())
                if self not in queue:
                    self.since = self.since or store.clock.now()
                    queue.insert(bisect(queue, self.since, key=lambda waiter: waiter.since), self)  # its old rank
                assert isinstance(answer, Busy)
            return answer

    def wait(self, seconds: float) -> Grant | None:
        ends = monotonic() + seconds
        self.asleep = True
        try:
            while isinstance(step := self._step(ends), float):
                self._alarm.sleep(step)
                self._alarm.clear()
            return step
        finally:
            self.seen, self.asleep = monotonic(), False

    def _step(self, ends: float) -> Grant | float | None:
        """Return the grant, or the seconds to sleep until the next attempt, or ``None`` after ``ends``."""
        with store.mutex:
            answer = self.acquire()
            if isinstance(answer, Grant):
                return answer
            self._expired = answer.expired
            left = ends - monotonic()
            return min(left, (answer.remaining or 0) / 1000 + 0.001) if left > 0 else None

    def leave(self) -> None:
        with store.mutex:
            with contextlib.suppress(KeyError, ValueError):
                queue = self._queues[self.request.name]
                queue.remove(self)
                if not queue:
                    del self._queues[self.request.name]
            if not self._taken:
                self.backend.release(self.request.name, self.request.token)

    async def aacquire(self) -> Grant | Busy:
        return self.acquire()

    async def await_(self, seconds: float) -> Grant | None:
        ends = monotonic() + seconds
        self.asleep = True
        try:
            while isinstance(step := self._step(ends), float):
                await self._alarm.asleep(step)
                self._alarm.clear()
            return step
        finally:
            self.seen, self.asleep = monotonic(), False

    async def aleave(self) -> None:
        self.leave()
