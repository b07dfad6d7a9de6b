"""Rate limits in a Redis Cluster: all keys of one limiter are in one slot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import nlargest
from typing import TYPE_CHECKING

from django_tasklock.backends.cluster.merging import grouped
from django_tasklock.backends.contract.rates import Booked, Penalty, Pushback, RateStore, Refused, Terms, Use
from django_tasklock.backends.redis.rates import RedisRates, terms_in
from django_tasklock.backends.redis.script import load

if TYPE_CHECKING:
    from django_tasklock.backends.cluster import ClusterBackend

NAMES = load("cluster_rates", 1, 1)


class ClusterRates(RateStore):
    """The rate limits of a ``ClusterBackend``."""

    def __init__(self, store: ClusterBackend) -> None:
        self._store = store

    def bucket(self, number: int) -> RedisRates:
        """Return the rate limits of a bucket, by its number."""
        return self._store.bucket(number).rates

    def _of(self, terms: Terms) -> RedisRates:
        return self.bucket(self._store.number_of(terms.name))

    def reserve(
        self, terms: Terms, cost: int, longest: int, spaced: bool = False, asks: bool = False
    ) -> Booked | Refused:
        return self._of(terms).reserve(terms, cost, longest, spaced, asks)

    def reserve_many(self, terms: Terms, cost: int, longest: int, number: int) -> list[Booked | Refused]:
        return self._of(terms).reserve_many(terms, cost, longest, number)

    def resume(
        self, terms: Terms, cost: int, slot: int, edition: int, longest: int, spaced: bool = False, leeway: int = 0
    ) -> Booked | Refused:
        return self._of(terms).resume(terms, cost, slot, edition, longest, spaced, leeway)

    def exchange(
        self, terms: Terms, cost: int, slots: Sequence[int], edition: int, longest: int, leeway: int = 0
    ) -> list[Booked | Refused]:
        return self._of(terms).exchange(terms, cost, slots, edition, longest, leeway)

    def agree(self, terms: Terms, process: str) -> str:
        return self._of(terms).agree(terms, process)

    def cancel(self, terms: Terms, cost: int, slot: int, edition: int) -> bool:
        return self._of(terms).cancel(terms, cost, slot, edition)

    def settle(self, terms: Terms, cost: int, slot: int, edition: int, actual: int) -> bool:
        return self._of(terms).settle(terms, cost, slot, edition, actual)

    def penalize(self, terms: Terms, pushback: Pushback, longest: int) -> Penalty:
        return self._of(terms).penalize(terms, pushback, longest)

    def pause(self, terms: Terms, length: int) -> None:
        self._of(terms).pause(terms, length)

    def adjust(self, terms: Terms, share: int) -> None:
        self._of(terms).adjust(terms, share)

    def use(self, terms: Terms) -> Use:
        return self._of(terms).use(terms)

    def reset(self, terms: Terms) -> None:
        self._of(terms).reset(terms)

    def names(self, limit: int = 1000) -> list[str]:
        asks = [self._store.ask(number, NAMES, self.bucket(number).naming(limit)) for number in self._store.numbers]
        found = [
            (float(used), name.decode())
            for reply in self._store.ask_all(asks)
            for name, used in zip(reply[::2], reply[1::2], strict=True)
        ]
        return [name for _, name in nlargest(limit, found)]

    def terms(self, names: Sequence[str]) -> Mapping[str, Terms]:
        buckets = grouped(self._store, names)
        named = {number: [names[index] for index in indexes] for number, indexes in buckets.items()}
        asks = [self._store.ask(number, *self.bucket(number).asking_terms(some)) for number, some in named.items()]
        found: dict[str, Terms] = {}
        for some, reply in zip(named.values(), self._store.ask_all(asks), strict=True):
            found |= terms_in(some, reply)
        return {name: found[name] for name in names if name in found}

    async def aagree(self, terms: Terms, process: str) -> str:
        return await self._of(terms).aagree(terms, process)

    async def areserve(self, terms: Terms, cost: int, longest: int, asks: bool = False) -> Booked | Refused:
        return await self._of(terms).areserve(terms, cost, longest, asks)

    async def aresume(
        self, terms: Terms, cost: int, slot: int, edition: int, longest: int, leeway: int = 0
    ) -> Booked | Refused:
        return await self._of(terms).aresume(terms, cost, slot, edition, longest, leeway)

    async def aexchange(
        self, terms: Terms, cost: int, slots: Sequence[int], edition: int, longest: int, leeway: int = 0
    ) -> list[Booked | Refused]:
        return await self._of(terms).aexchange(terms, cost, slots, edition, longest, leeway)

    async def acancel(self, terms: Terms, cost: int, slot: int, edition: int) -> bool:
        return await self._of(terms).acancel(terms, cost, slot, edition)

    async def asettle(self, terms: Terms, cost: int, slot: int, edition: int, actual: int) -> bool:
        return await self._of(terms).asettle(terms, cost, slot, edition, actual)

    async def apenalize(self, terms: Terms, pushback: Pushback, longest: int) -> Penalty:
        return await self._of(terms).apenalize(terms, pushback, longest)

    async def ause(self, terms: Terms) -> Use:
        return await self._of(terms).ause(terms)

    async def areset(self, terms: Terms) -> None:
        await self._of(terms).areset(terms)
