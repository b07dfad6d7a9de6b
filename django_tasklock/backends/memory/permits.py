"""Permits of one process."""

from __future__ import annotations

from collections.abc import Sequence

from django_tasklock.backends.contract.leases import Waiter
from django_tasklock.backends.contract.permits import Permits
from django_tasklock.backends.memory.store import store
from django_tasklock.backends.memory.waiter import MemoryWaiter
from django_tasklock.types import Ask, Busy, Grant, Kept, Record, Released, Renewal

__all__ = ["MemoryPermits"]


class MemoryPermits(Permits):
    """The contract within one process. Every object of this class has the same permits."""

    wakes = True

    def acquire(self, ask: Ask) -> Grant | Busy:
        with store.mutex:
            taken = store.serve(ask.name)
            held = taken.get(ask.token)
            if held is not None:
                held.expires = store.now() + ask.ttl
                return Grant(held.fence, ask.ttl)
            if len(taken) < ask.limit and not store.lines.get(ask.name):
                held = store.permits.setdefault(ask.name, taken)[ask.token] = store.made(ask, ask.ttl)
                return Grant(held.fence, ask.ttl)
            first = min(taken.values(), key=lambda held: held.expires, default=None)
            if first is None:
                return Busy(None, 1000)
            record = store.record(ask.name, first, store.lines)
            return Busy(record, record.ttl)

    def release(self, name: str, token: str) -> Released:
        return Released.RELEASED if self.remove(name, token) else Released.GONE

    def extend(self, name: str, token: str, ttl: int, hold: int) -> bool:
        with store.mutex:
            held = store.serve(name).get(token)
            if held is not None:
                now = store.now()
                held.expires, held.until = now + ttl, now + hold
            return held is not None

    def renew(self, batch: Sequence[Renewal]) -> list[Kept]:
        with store.mutex:
            found = [store.serve(item.name).get(item.token) for item in batch]
            for held, item in zip(found, batch, strict=True):
                if held is not None:
                    held.expires = store.now() + item.ttl
            return [Kept.LOST if held is None else Kept.RENEWED for held in found]

    def members(self, name: str) -> list[Record]:
        with store.mutex:
            taken = sorted(store.serve(name).values(), key=lambda held: held.fence)
            return [store.record(name, held, store.lines) for held in taken]

    def remove(self, name: str, token: str) -> Record | None:
        with store.mutex:
            held = store.serve(name).get(token)
            if held is None:
                return None
            record = store.record(name, held, store.lines)
            del store.permits[name][token]
            store.serve(name)
            return record

    def names(self, limit: int = 1000) -> list[str]:
        with store.mutex:
            return [name for name in list(store.permits) if store.serve(name)][:limit]

    def waiter(self, ask: Ask) -> Waiter:
        return MemoryWaiter(self, ask, store.lines)

    async def aacquire(self, ask: Ask) -> Grant | Busy:
        return self.acquire(ask)

    async def arelease(self, name: str, token: str) -> Released:
        return self.release(name, token)

    async def aextend(self, name: str, token: str, ttl: int, hold: int) -> bool:
        return self.extend(name, token, ttl, hold)

    async def amembers(self, name: str) -> list[Record]:
        return self.members(name)
