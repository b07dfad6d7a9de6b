"""The operations of a store of locks and of permits, on the store of this process."""

from __future__ import annotations

from math import inf
from typing import get_args

from django_tasklock.backends.contract.lists import Counts, Which
from django_tasklock.backends.contract.stores import DAY, LockStore, Permits
from django_tasklock.backends.memory.leases import MemoryLeases
from django_tasklock.backends.memory.rates import MemoryRates
from django_tasklock.backends.memory.store import Table, store
from django_tasklock.conf import Settings, expiring
from django_tasklock.types import Record, Released


class MemoryPermits(MemoryLeases, Permits):
    """The contract within one process. All objects of this class share the same permits."""

    @property
    def table(self) -> Table:
        return store.permits

    def release(self, name: str, token: str) -> Released:
        return super().release(name, token) or Released.GONE

    def members(self, name: str) -> list[Record]:
        with store.mutex:
            leases = sorted(self.table.serve(name).values(), key=lambda lease: lease.fence)
            return [self.table.record(name, lease) for lease in leases]

    def remove(self, name: str, token: str) -> Record | None:
        with store.mutex:
            return self._removed(name, token) if token in self.table.serve(name) else None

    def names(self, limit: int = 1000) -> list[str]:
        with store.mutex:
            return [name for name in list(self.table.held) if self.table.serve(name)][:limit]


class MemoryBackend(MemoryLeases, LockStore):
    """The contract within one process. All objects of this class share the same locks."""

    across_processes = False

    def __init__(self, settings: Settings) -> None:
        self.permits = MemoryPermits()
        self.rates = MemoryRates()

    @property
    def table(self) -> Table:
        return store.locks

    def get(self, name: str) -> Record | None:
        with store.mutex:
            return next((self.table.record(name, lease) for lease in self.table.serve(name).values()), None)

    def records(self, which: Which = "live", *, offset: int = 0, limit: int = 1000) -> list[Record]:
        with store.mutex:
            found = sorted(self._in_state(which))[offset : offset + limit]
            return [self.table.record(name, self.table.held[name][token]) for _, name, token in found]

    def get_orphaned(self, name: str) -> Record | None:
        with store.mutex:
            if self.table.serve(name):
                return None
            return next((self.table.record(name, lease) for lease in self.table.held.get(name, {}).values()), None)

    def counts(self) -> Counts:
        with store.mutex:
            return Counts(*(len(self._in_state(which)) for which in get_args(Which)))

    def _in_state(self, which: Which) -> list[tuple[int, str, str]]:
        """Return expiry, name and token of the locks in a state."""
        now = store.clock.now()
        after, until = {
            "live": (now, inf),
            "expiring": (now, now + expiring()),
            "no_expiry": (inf, inf),
            "orphaned": (-inf, now),
        }[which]
        leases = ((name, lease) for name, held in self.table.held.items() for lease in held.values())
        return [(lease.expires, name, lease.token) for name, lease in leases if after < lease.expires <= until]

    def ask_release(self, name: str, token: str) -> bool:
        with store.mutex:
            lease = self.table.serve(name).get(token)
            if lease is not None:
                lease.asked = lease.asked or store.clock.now()
            return lease is not None

    def prune(self, limit: int) -> int:
        with store.mutex:
            gone = sorted(self._in_state("orphaned"))[:limit]
            for _, name, token in gone:
                self.table.end(name, token)
            return len(gone)

    def remove(self, name: str, token: str | None = None) -> Record | None:
        with store.mutex:
            live = self.table.serve(name)
            held = next(iter(self.table.held.get(name, {})), None)
            if held is None or token not in (None, held):
                return None
            found = self._removed(name, held)
            return found if live else None

    def tally(self, name: str, number: int = 1, *, ttl: int = DAY) -> int:
        with store.mutex:
            now, tallies = store.clock.now(), store.tallies
            before, expires = tallies.get(name, (0, 0))
            counter = number + (before if expires > now else 0)
            if number:
                tallies.pop(name, None)
                tallies[name] = counter, now + ttl
                while tallies[oldest := next(iter(tallies))][1] <= now:
                    del tallies[oldest]
            return counter
