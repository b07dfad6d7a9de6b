"""Permits in a Redis Cluster: all keys of one limiter are in one slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from django_tasklock.backends.cluster.merging import renew_all
from django_tasklock.backends.contract.leases import Waiter
from django_tasklock.backends.contract.permits import Permits
from django_tasklock.backends.contract.queries import Queued
from django_tasklock.backends.redis.permits import NAMES, RedisPermits, results
from django_tasklock.types import AcquireRequest, Busy, Grant, Record, Released, Renewal, RenewalResult

if TYPE_CHECKING:
    from django_tasklock.backends.cluster import ClusterBackend


class ClusterPermits(Permits):
    """The permits of a ``ClusterBackend``."""

    wakes = True

    def __init__(self, store: ClusterBackend) -> None:
        self._store = store

    def bucket(self, number: int) -> RedisPermits:
        """Return the permits of a bucket, by its number."""
        return self._store.bucket(number).permits

    def _of(self, name: str) -> RedisPermits:
        return self.bucket(self._store.number_of(name))

    def waiter(self, request: AcquireRequest) -> Waiter:
        return self._of(request.name).waiter(request)

    def acquire(self, request: AcquireRequest) -> Grant | Busy:
        return self._of(request.name).acquire(request)

    def release(self, name: str, token: str) -> Released:
        return self._of(name).release(name, token)

    def extend(self, name: str, token: str, ttl: int, hold: int) -> bool:
        return self._of(name).extend(name, token, ttl, hold)

    def renew(self, batch: Sequence[Renewal]) -> list[RenewalResult]:
        """Do what the contract says, at all nodes at once. Leases at a node that does not answer are ``UNKNOWN``."""
        return renew_all(self._store, batch, lambda number, part: self.bucket(number).renewing(part), results)

    def members(self, name: str) -> list[Record]:
        return self._of(name).members(name)

    def waiters(self, name: str, limit: int = 100) -> Queued:
        return self._of(name).waiters(name, limit)

    def remove(self, name: str, token: str) -> Record | None:
        return self._of(name).remove(name, token)

    def names(self, limit: int = 1000) -> list[str]:
        asks = [self._store.ask(number, NAMES, self.bucket(number).naming(limit)) for number in self._store.numbers]
        return [name.decode() for names in self._store.ask_all(asks) for name in names][:limit]

    async def aacquire(self, request: AcquireRequest) -> Grant | Busy:
        return await self._of(request.name).aacquire(request)

    async def arelease(self, name: str, token: str) -> Released:
        return await self._of(name).arelease(name, token)

    async def aextend(self, name: str, token: str, ttl: int, hold: int) -> bool:
        return await self._of(name).aextend(name, token, ttl, hold)

    async def amembers(self, name: str) -> list[Record]:
        return await self._of(name).amembers(name)
