"""Rate limits in a Redis Cluster: all keys of one limiter are in one slot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import nlargest
from typing import TYPE_CHECKING

from django_tasklock.backends.cluster.merging import grouped
from django_tasklock.backends.contract.rates import Booked, Penalty, Pushback, RateStore, Refused, Terms, Usage
from django_tasklock.backends.redis.rates import RedisRates, parse_terms
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

    def _rates_of(self, terms: Terms) -> RedisRates:
        return self.bucket(self._store.number_of(terms.name))

    def reserve(
        self, terms: Terms, cost: int, max_wait: int, spaced: bool = False, will_resume: bool = False
    ) -> Booked | Refused:
        return self._rates_of(terms).reserve(terms, cost, max_wait, spaced, will_resume)

    def reserve_many(self, terms: Terms, cost: int, max_wait: int, number: int) -> list[Booked | Refused]:
        return self._rates_of(terms).reserve_many(terms, cost, max_wait, number)

    def resume(
        self, terms: Terms, cost: int, slot: int, edition: int, max_wait: int, spaced: bool = False, leeway: int = 0
    ) -> Booked | Refused:
        return self._rates_of(terms).resume(terms, cost, slot, edition, max_wait, spaced, leeway)

    def exchange(
        self, terms: Terms, cost: int, slots: Sequence[int], edition: int, max_wait: int, leeway: int = 0
    ) -> list[Booked | Refused]:
        return self._rates_of(terms).exchange(terms, cost, slots, edition, max_wait, leeway)

    def cancel(self, terms: Terms, cost: int, slot: int, edition: int) -> bool:
        return self._rates_of(terms).cancel(terms, cost, slot, edition)

    def settle(self, terms: Terms, cost: int, slot: int, edition: int, actual: int) -> bool:
        return self._rates_of(terms).settle(terms, cost, slot, edition, actual)

    def penalize(self, terms: Terms, pushback: Pushback, max_length: int) -> Penalty:
        return self._rates_of(terms).penalize(terms, pushback, max_length)

    def pause(self, terms: Terms, length: int) -> None:
        self._rates_of(terms).pause(terms, length)

    def adjust(self, terms: Terms, share: int) -> None:
        self._rates_of(terms).adjust(terms, share)

    def usage(self, terms: Terms) -> Usage:
        return self._rates_of(terms).usage(terms)

    def reset(self, terms: Terms) -> None:
        self._rates_of(terms).reset(terms)

    def names(self, limit: int = 1000) -> list[str]:
        requests = [
            self._store.ask(number, NAMES, self.bucket(number).names_arguments(limit)) for number in self._store.numbers
        ]
        found = [
            (float(used), name.decode())
            for reply in self._store.ask_all(requests)
            for name, used in zip(reply[::2], reply[1::2], strict=True)
        ]
        return [name for _, name in nlargest(limit, found)]

    def terms(self, names: Sequence[str]) -> Mapping[str, Terms]:
        buckets = grouped(self._store, names)
        named = {number: [names[index] for index in indexes] for number, indexes in buckets.items()}
        requests = [self._store.ask(number, *self.bucket(number).terms_request(some)) for number, some in named.items()]
        found: dict[str, Terms] = {}
        for some, reply in zip(named.values(), self._store.ask_all(requests), strict=True):
            found |= parse_terms(some, reply)
        return {name: found[name] for name in names if name in found}

    async def areserve(self, terms: Terms, cost: int, max_wait: int, will_resume: bool = False) -> Booked | Refused:
        return await self._rates_of(terms).areserve(terms, cost, max_wait, will_resume)

    async def aresume(
        self, terms: Terms, cost: int, slot: int, edition: int, max_wait: int, leeway: int = 0
    ) -> Booked | Refused:
        return await self._rates_of(terms).aresume(terms, cost, slot, edition, max_wait, leeway)

    async def aexchange(
        self, terms: Terms, cost: int, slots: Sequence[int], edition: int, max_wait: int, leeway: int = 0
    ) -> list[Booked | Refused]:
        return await self._rates_of(terms).aexchange(terms, cost, slots, edition, max_wait, leeway)

    async def acancel(self, terms: Terms, cost: int, slot: int, edition: int) -> bool:
        return await self._rates_of(terms).acancel(terms, cost, slot, edition)

    async def asettle(self, terms: Terms, cost: int, slot: int, edition: int, actual: int) -> bool:
        return await self._rates_of(terms).asettle(terms, cost, slot, edition, actual)

    async def apenalize(self, terms: Terms, pushback: Pushback, max_length: int) -> Penalty:
        return await self._rates_of(terms).apenalize(terms, pushback, max_length)

    async def ausage(self, terms: Terms) -> Usage:
        return await self._rates_of(terms).ausage(terms)

    async def areset(self, terms: Terms) -> None:
        await self._rates_of(terms).areset(terms)
