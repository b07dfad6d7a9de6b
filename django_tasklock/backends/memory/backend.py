"""The operations of a store of locks, on the store of this process."""

from __future__ import annotations

from collections import deque
from typing import get_args

from django_tasklock.backends.contract.locks import LockStore
from django_tasklock.backends.contract.queries import Counts, Page, Pruned, Query, Queued, Which
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

    def page(self, query: Query) -> Page:
        with store.mutex:
            held = [store.record(name, lease) for name, lease in store.held.items()]
        records = [record for record in held if is_in_state(record, query)]
        records.sort(key=lambda record: (sort_key(record, query), record.name), reverse=query.descending)
        found: list[Record] = []
        for number, record in enumerate(records[query.offset :], query.offset):
            if len(found) >= query.limit:
                return Page(found, len(records), number)
            if query.matches(record):
                found.append(record)
        return Page(found, len(records), None)

    def counts(self) -> Counts:
        total = {which: self.page(Query(which, limit=0)).total for which in get_args(Which)}
        return Counts(**total)

    def ask_release(self, name: str, token: str) -> bool:
        with store.mutex:
            held = store.owned(name, token)
            if held is not None:
                held.asked = held.asked or store.now()
            return held is not None

    def prune(self, limit: int, *, lapsed_before: int | None = None, prefix: str = "", offset: int = 0) -> Pruned:
        with store.mutex:
            before = store.now() if lapsed_before is None else min(lapsed_before, store.now())
            lapsed = sorted((held.expires, name) for name, held in store.held.items() if held.expires <= before)
            examined = [name for _, name in lapsed[offset : offset + limit]]
            removed = [name for name in examined if name.startswith(prefix)]
            for name in removed:
                store.free(name)
            return Pruned(len(removed), len(examined) - len(removed))

    def remove(self, name: str, token: str | None = None) -> Record | None:
        with store.mutex:
            live = store.current(name)
            held = live or store.held.get(name)
            if held is None or token not in (None, held.token):
                return None
            record = store.record(name, held)
            store.free(name)
            return record if live else None


def is_in_state(record: Record, query: Query) -> bool:
    """Return whether a lock is in the state of the query."""
    left = 0 if record.ttl is None else record.ttl
    return {"live": left > 0, "expiring": 0 < left <= expiring(), "no_expiry": False, "orphaned": left <= 0}[
        query.which
    ]


def sort_key(record: Record, query: Query) -> int:
    """Return the value by which the query sorts the record."""
    order = query.order if query.which == "live" else "expiry"
    return {"expiry": record.now + (record.ttl or 0), "age": -record.at, "left": record.until}[order]
