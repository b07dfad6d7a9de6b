"""The permits of one process."""

from __future__ import annotations

from collections import deque

from django_tasklock.backends.contract.leases import Queued
from django_tasklock.backends.contract.permits import Permits
from django_tasklock.backends.memory.leases import MemoryLeases
from django_tasklock.backends.memory.store import QueuedWaiter, StoredLease, store
from django_tasklock.types import AcquireRequest, Busy, Grant, Record, Released


class MemoryPermits(MemoryLeases, Permits):
    """The contract within one process. All objects of this class share the same permits."""

    @property
    def queues(self) -> dict[str, deque[QueuedWaiter]]:
        return store.permit_queues

    def acquire(self, request: AcquireRequest) -> Grant | Busy:
        with store.mutex:
            now = store.now()
            expired = sum(held.expires <= now for held in store.permits.get(request.name, {}).values())
            taken = store.serve(request.name)
            held = taken.get(request.token)
            if held is not None:
                held.expires = now + request.ttl_ms
                return Grant(held.fence, request.ttl_ms, expired)
            if len(taken) < request.limit and not store.permit_queues.get(request.name):
                held = store.permits.setdefault(request.name, taken)[request.token] = store.new_lease(
                    request, request.ttl_ms
                )
                return Grant(held.fence, request.ttl_ms, expired)
            first = min(taken.values(), key=lambda held: held.expires, default=None)
            if first is None:
                return Busy(None, 1000, expired=expired)
            record = store.record(request.name, first, store.permit_queues)
            return Busy(record, record.ttl, expired=expired)

    def owned(self, name: str, token: str) -> StoredLease | None:
        return store.serve(name).get(token)

    def release(self, name: str, token: str) -> Released:
        return Released.RELEASED if self.remove(name, token) else Released.GONE

    def members(self, name: str) -> list[Record]:
        with store.mutex:
            taken = sorted(store.serve(name).values(), key=lambda held: held.fence)
            return [store.record(name, held, store.permit_queues) for held in taken]

    def waiters(self, name: str, limit: int = 100) -> Queued:
        with store.mutex:
            return store.queued(name, store.permit_queues, limit)

    def remove(self, name: str, token: str) -> Record | None:
        with store.mutex:
            held = store.serve(name).get(token)
            if held is None:
                return None
            record = store.record(name, held, store.permit_queues)
            del store.permits[name][token]
            store.serve(name)
            return record

    def names(self, limit: int = 1000) -> list[str]:
        with store.mutex:
            return [name for name in list(store.permits) if store.serve(name)][:limit]
