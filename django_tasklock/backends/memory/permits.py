"""The permits of one process."""

from __future__ import annotations

from django_tasklock.backends.contract.stores import Permits
from django_tasklock.backends.memory.leases import MemoryLeases
from django_tasklock.backends.memory.store import Table, store
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
