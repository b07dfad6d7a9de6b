"""The operations of a store of locks, on the store of this process."""

from __future__ import annotations

from collections import deque
from math import inf
from typing import get_args

from django_tasklock.backends.contract.leases import Queued
from django_tasklock.backends.contract.lists import Counts, Which
from django_tasklock.backends.contract.locks import LockStore
from django_tasklock.backends.memory.leases import MemoryLeases
from django_tasklock.backends.memory.permits import MemoryPermits
from django_tasklock.backends.memory.rates import MemoryRates
from django_tasklock.backends.memory.store import QueuedWaiter, StoredLease, store
from django_tasklock.conf import Settings, expiring
from django_tasklock.types import AcquireRequest, Busy, Grant, Record, Released


class MemoryBackend(MemoryLeases, LockStore):
    """The contract within one process. All objects of this class share the same locks."""

    across_processes = False

    def __init__(self, settings: Settings) -> None:
        self.permits = MemoryPermits()
        self.rates = MemoryRates()

    @property
    def queues(self) -> dict[str, deque[QueuedWaiter]]:
        return store.queues

    def acquire(self, request: AcquireRequest) -> Grant | Busy:
        with store.mutex:
            before = store.held.get(request.name)
            expired = int(before is not None and before.expires <= store.now())
            held = store.current(request.name)
            if held is None or (request.supersedes and held.token == request.supersedes):
                held = store.grant(request, request.ttl_ms)
            elif held.token == request.token:
                held.expires = store.now() + request.ttl_ms
            else:
                record = store.record(request.name, held)
                return Busy(record, record.ttl, expired=expired)
            return Grant(held.fence, request.ttl_ms, expired)

    def owned(self, name: str, token: str) -> StoredLease | None:
        return store.owned(name, token)

    def release(self, name: str, token: str) -> Released:
        with store.mutex:
            held = store.current(name)
            if held is None:
                return Released.GONE
            if held.token != token:
                return Released.NOT_YOURS
            store.free(name)
            return Released.RELEASED

    def get(self, name: str) -> Record | None:
        with store.mutex:
            held = store.current(name)
            return None if held is None else store.record(name, held)

    def waiters(self, name: str, limit: int = 100) -> Queued:
        with store.mutex:
            return store.queued(name, store.queues, limit)

    def records(self, which: Which = "live", *, offset: int = 0, limit: int = 1000) -> list[Record]:
        with store.mutex:
            return [store.record(name, store.held[name]) for name in self._names(which)[offset : offset + limit]]

    def counts(self) -> Counts:
        with store.mutex:
            return Counts(*(len(self._names(which)) for which in get_args(Which)))

    def _names(self, which: Which) -> list[str]:
        """Return the names of the locks in a state, by expiry."""
        now = store.now()
        first, last = {
            "live": (now, inf),
            "expiring": (now, now + expiring()),
            "no_expiry": (inf, inf),
            "orphaned": (-inf, now),
        }[which]
        return [
            name
            for ends, name in sorted((held.expires, name) for name, held in store.held.items())
            if first < ends <= last
        ]

    def ask_release(self, name: str, token: str) -> bool:
        with store.mutex:
            held = store.owned(name, token)
            if held is not None:
                held.asked = held.asked or store.now()
            return held is not None

    def prune(self, limit: int) -> int:
        with store.mutex:
            gone = self._names("orphaned")[:limit]
            for name in gone:
                store.free(name)
            return len(gone)

    def remove(self, name: str, token: str | None = None) -> Record | None:
        with store.mutex:
            live = store.current(name)
            held = live or store.held.get(name)
            if held is None or token not in (None, held.token):
                return None
            record = store.record(name, held)
            store.free(name)
            return record if live else None
