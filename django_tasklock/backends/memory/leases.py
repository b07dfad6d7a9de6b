"""The operations of a holder, which locks and permits of one process have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Sequence

from django_tasklock.backends.contract.leases import LeaseStore, Waiter
from django_tasklock.backends.memory.store import QueuedWaiter, StoredLease, store
from django_tasklock.backends.memory.waiter import MemoryWaiter
from django_tasklock.types import AcquireRequest, Renewal, RenewalResult


class MemoryLeases(LeaseStore):
    """Leases in the memory of this process."""

    wakes = True
    where = "loop"

    @property
    @abstractmethod
    def queues(self) -> dict[str, deque[QueuedWaiter]]:
        """The waiters, by name of the lock or limiter: the store's at present, because a forked child has its own."""

    @abstractmethod
    def owned(self, name: str, token: str) -> StoredLease | None:
        """Return the lock or the permit, if ``token`` holds it. The caller holds the store's mutex."""

    def extend(self, name: str, token: str, ttl: int, hold: int) -> bool:
        with store.mutex:
            held = self.owned(name, token)
            if held is not None:
                now = store.now()
                held.expires, held.until = now + ttl, now + hold
            return held is not None

    def renew(self, batch: Sequence[Renewal]) -> list[RenewalResult]:
        with store.mutex:
            return [self._renew(item) for item in batch]

    def _renew(self, item: Renewal) -> RenewalResult:
        held = self.owned(item.name, item.token)
        if held is None:
            return RenewalResult.LOST
        held.expires = store.now() + item.ttl
        return RenewalResult.ASKED if held.asked else RenewalResult.RENEWED

    def waiter(self, request: AcquireRequest) -> Waiter:
        return MemoryWaiter(self, request, self.queues)
