"""Locks in a Redis Cluster: all keys of one name are in one slot, and the names are spread over all slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from django_tasklock.backends.cluster.buckets import buckets_of, number_of
from django_tasklock.backends.cluster.listing import Listing
from django_tasklock.backends.cluster.location import Source
from django_tasklock.backends.cluster.merging import all_or_raise, renew_all
from django_tasklock.backends.cluster.nodes import Nodes
from django_tasklock.backends.cluster.permits import ClusterPermits
from django_tasklock.backends.cluster.rates import ClusterRates
from django_tasklock.backends.cluster.wire import ClusterWire, SlotRequest, SlotSubscribers, SlotWire
from django_tasklock.backends.cluster.wire_async import SlotAio
from django_tasklock.backends.contract.leases import Waiter
from django_tasklock.backends.contract.locks import LockStore
from django_tasklock.backends.contract.queries import Counts, Page, Pruned, Query, Queued
from django_tasklock.backends.redis import CONDITION, RedisBackend, results
from django_tasklock.backends.redis.acknowledged import Acknowledged
from django_tasklock.backends.redis.connections import Asking, AsyncAsking, Listening
from django_tasklock.backends.redis.keys import Layout
from django_tasklock.backends.redis.listing import ORDERED
from django_tasklock.conf import Settings
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.types import AcquireRequest, Busy, Grant, Record, Released, Renewal, RenewalResult

__all__ = ["ClusterBackend"]

SAFE = "noeviction"


class SlotConnections:
    """The connections of a bucket's store to the node that serves its slot. Other buckets share them."""

    def __init__(self, nodes: Nodes, wire: ClusterWire, slot: int, replicas: int) -> None:
        acknowledged = Acknowledged(replicas) if replicas else None
        self.wire: Asking = SlotWire(wire, slot, acknowledged)
        self.subscribers: Listening = SlotSubscribers(nodes, slot)
        self.aio: AsyncAsking = SlotAio(nodes, slot, acknowledged)

    def close(self) -> None:
        """Close nothing, because other buckets use the connections, too."""


class ClusterBackend(LockStore):
    """The store in a Redis Cluster.

    A verb for one name is one round trip to the node that serves its slot. Like ``RedisBackend`` it cannot promise that
    a failover keeps all locks, because replicas lag: use the guarded row for that.
    """

    wakes = True
    keeps_order = True

    def __init__(self, settings: Settings) -> None:
        self.location = settings.location
        self._settings = settings
        self._buckets = buckets_of(settings.prefix)
        self._nodes = Nodes(Source(settings.location), Layout(self._buckets[0].prefix))
        self._wire = ClusterWire(self._nodes)
        self._made: list[RedisBackend | None] = [None] * len(self._buckets)
        self.permits = ClusterPermits(self)
        self.rates = ClusterRates(self)
        self._listing = Listing(self)
        self.orders = ORDERED * len(self._buckets)

    def number_of(self, name: str) -> int:
        """Return the number of the bucket of a name."""
        return number_of(name, len(self._buckets))

    def bucket(self, number: int) -> RedisBackend:
        """Return the store of a bucket, by its number."""
        found = self._made[number]
        if found is None:
            where = self._buckets[number]
            connections = SlotConnections(self._nodes, self._wire, where.slot, self._settings.REPLICAS)
            found = RedisBackend(replace(self._settings, KEY_PREFIX=where.prefix), connections)
            self._made[number] = found
        return found

    def of(self, name: str) -> RedisBackend:
        """Return the store of the bucket of a name."""
        return self.bucket(self.number_of(name))

    @property
    def numbers(self) -> range:
        """The numbers of the buckets."""
        return range(len(self._buckets))

    def ask(self, number: int, script: Any, tail: bytes) -> SlotRequest:
        """Return a request to a bucket, for ``ask_all``."""
        return SlotRequest(self._buckets[number].slot, script, tail)

    def ask_all(self, asks: Sequence[SlotRequest]) -> list[Any]:
        """Run scripts, at all nodes at once, and return the replies. Raises ``BackendUnavailable``.

        A script may be run twice.
        """
        return all_or_raise(self.try_all(asks))

    def try_all(self, asks: Sequence[SlotRequest], *, patient: bool = True) -> list[Any]:
        """Do what ``ask_all`` does, but return a ``BackendUnavailable`` in place of each missing reply.

        ``patient``: see ``ClusterWire.call_all``.
        """
        return self._wire.call_all(asks, patient=patient)

    def waiter(self, request: AcquireRequest) -> Waiter:
        return self.of(request.name).waiter(request)

    def acquire(self, request: AcquireRequest) -> Grant | Busy:
        return self.of(request.name).acquire(request)

    def release(self, name: str, token: str) -> Released:
        return self.of(name).release(name, token)

    def release_and_clear(
        self, name: str, token: str, names: tuple[str, ...]
    ) -> tuple[Released, frozenset[str] | None]:
        number = self.number_of(name)
        here = tuple(one for one in names if self.number_of(one) == number)
        if here:
            released, found = self.bucket(number).release_and_clear(name, token, here)
        else:
            released, found = self.bucket(number).release(name, token), frozenset()
        if found is None or not released:
            return released, None if found is None or len(here) < len(names) else found
        try:
            return released, found | {one for one in names if one not in here and self.clear_flag(one)}
        except BackendUnavailable:
            return released, None

    def extend(self, name: str, token: str, ttl: int, hold: int) -> bool:
        return self.of(name).extend(name, token, ttl, hold)

    def renew(self, batch: Sequence[Renewal]) -> list[RenewalResult]:
        """Do what the contract says, at all nodes at once. Leases at a node that does not answer are ``UNKNOWN``."""
        return renew_all(self, batch, lambda number, part: self.bucket(number).renewing(part), results)

    def get(self, name: str) -> Record | None:
        return self.of(name).get(name)

    def waiters(self, name: str, limit: int = 100) -> Queued:
        return self.of(name).waiters(name, limit)

    def page(self, query: Query) -> Page:
        return self._listing.page(query)

    def counts(self) -> Counts:
        return self._listing.counts()

    def _condition(self) -> tuple[int | None, str | None]:
        told = self._wire.call_each(CONDITION, b"")
        policies = [policy.decode() for _, policy in told]
        return int(told[0][0]), next((policy for policy in policies if policy != SAFE), SAFE)

    def ask_release(self, name: str, token: str) -> bool:
        return self.of(name).ask_release(name, token)

    def set_expiry(self, name: str, token: str, ttl: int) -> bool:
        return self.of(name).set_expiry(name, token, ttl)

    def prune(self, limit: int, *, lapsed_before: int | None = None, prefix: str = "", offset: int = 0) -> Pruned:
        return self._listing.prune(limit, lapsed_before, prefix, offset)

    def remove(self, name: str, token: str | None = None) -> Record | None:
        return self.of(name).remove(name, token)

    def next_number(self, name: str = "", member: str = "") -> int:
        return self.of(name).next_number(name, member)

    def count_before(self, name: str, number: int, *, forget: bool = False) -> int:
        return self.of(name).count_before(name, number, forget=forget)

    def leave_order(self, name: str, member: str) -> bool:
        return self.of(name).leave_order(name, member)

    def record_newest(self, name: str, number: int) -> bool:
        return self.of(name).record_newest(name, number)

    def set_flag(self, name: str) -> bool:
        return self.of(name).set_flag(name)

    def clear_flag(self, name: str) -> bool:
        return self.of(name).clear_flag(name)

    def close(self) -> None:
        self._nodes.close()

    async def aacquire(self, request: AcquireRequest) -> Grant | Busy:
        return await self.of(request.name).aacquire(request)

    async def arelease(self, name: str, token: str) -> Released:
        return await self.of(name).arelease(name, token)

    async def aextend(self, name: str, token: str, ttl: int, hold: int) -> bool:
        return await self.of(name).aextend(name, token, ttl, hold)

    async def aget(self, name: str) -> Record | None:
        return await self.of(name).aget(name)
