"""The operations of a holder, which locks and permits of one process have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from django_tasklock.backends.contract.stores import LeaseStore, Queued, Waiter
from django_tasklock.backends.memory.store import Table, store
from django_tasklock.backends.memory.waiter import MemoryWaiter
from django_tasklock.types import AcquireRequest, Busy, Grant, Record, Released, Renewal, RenewalResult


class MemoryLeases(LeaseStore):
    """Leases in the memory of this process."""

    wakes = True
    where = "loop"

    @property
    @abstractmethod
    def table(self) -> Table:
        """The leases: the store's at present, because a forked child has its own."""

    def acquire(self, request: AcquireRequest) -> Grant | Busy:
        name = request.name
        with store.mutex:
            table = self.table
            expired = len(table.held.get(name, {})) - len(table.live(name))
            if expired:
                table.held[name] = table.live(name)
            live = table.serve(name)
            mine = live.get(request.token)
            if mine is not None:
                mine.expires = store.clock.now() + request.ttl_ms
            elif request.supersedes in live:
                del table.held[name][request.supersedes]
                mine = table.grant(request, request.ttl_ms)
            elif len(live) < request.limit and name not in table.queues:
                mine = table.grant(request, request.ttl_ms)
            else:
                first = table.record(name, min(live.values(), key=lambda lease: lease.expires))
                return Busy(first, first.ttl, expired=expired)
            return Grant(mine.fence, request.ttl_ms, expired)

    def release(self, name: str, token: str) -> Released:
        with store.mutex:
            live = self.table.serve(name)
            if token not in live:
                return Released.NOT_YOURS if live else Released.GONE
            self.table.end(name, token)
            return Released.RELEASED

    def extend(self, name: str, token: str, ttl: int, hold: int) -> bool:
        with store.mutex:
            lease, now = self.table.serve(name).get(token), store.clock.now()
            if lease is not None:
                lease.expires, lease.until = now + ttl, now + hold
            return lease is not None

    def renew(self, batch: Sequence[Renewal]) -> list[RenewalResult]:
        with store.mutex:
            return [self._renew(item) for item in batch]

    def _renew(self, item: Renewal) -> RenewalResult:
        lease = self.table.serve(item.name).get(item.token)
        if lease is None:
            return RenewalResult.LOST
        lease.expires = store.clock.now() + item.ttl
        return RenewalResult.ASKED if lease.asked else RenewalResult.RENEWED

    def waiter(self, request: AcquireRequest) -> Waiter:
        return MemoryWaiter(self, request, self.table.queues)

    def waiters(self, name: str, limit: int = 100) -> Queued:
        with store.mutex:
            return self.table.queued(name, limit)

    def _removed(self, name: str, token: str) -> Record:
        """End a lease, which the caller knows; return it. The caller holds the mutex."""
        found = self.table.record(name, self.table.held[name][token])
        self.table.end(name, token)
        return found
