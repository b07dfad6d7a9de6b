"""The counts of a cluster: the sums of what the scripts have counted in each bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_tasklock.backends.contract.metrics import Counted, HoldRecord, Hour, Metrics
from django_tasklock.backends.redis.metrics import AT_ONCE, TOTALS, Part, hours_in, is_whole, parts, reading, totals_in

if TYPE_CHECKING:
    from django_tasklock.backends.cluster import ClusterBackend


class ClusterMetrics(Metrics):
    """The counts of a ``ClusterBackend``: sums over its buckets."""

    def __init__(self, store: ClusterBackend) -> None:
        self._store = store

    def totals(self) -> Counted:
        return totals_in(self._parts(""))

    def hours(self, number: int) -> list[Hour]:
        found = hours_in(self._parts(str(number)))
        return [Hour(at, found[at]) for at in sorted(found)]

    def _parts(self, hours: str) -> list[Part]:
        offset = 0
        while True:
            asks = [
                self._store.ask(number, TOTALS, reading(self._store.bucket(number).layout, hours, offset))
                for number in self._store.numbers
            ]
            replies = self._store.ask_all(asks)
            offset += AT_ONCE
            if is_whole(replies, offset):
                return [part for reply in replies for part in parts(reply)]

    def add(self, event: str, kind: str) -> None:
        self._store.of(kind).metrics.add(event, kind)

    def holds(self, name: str, limit: int) -> list[HoldRecord]:
        return self._store.of(name).metrics.holds(name, limit)
