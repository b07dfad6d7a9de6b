"""What the scripts have counted in all buckets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_tasklock.backends.contract.metrics import Count, Counted, HoldRecord, Hour, Metrics
from django_tasklock.backends.redis.metrics import TOTALS, add_fields
from django_tasklock.backends.redis.script import bulk

if TYPE_CHECKING:
    from django_tasklock.backends.cluster import ClusterBackend


class ClusterMetrics(Metrics):
    """The counts of a ``ClusterBackend``: sums over its buckets."""

    def __init__(self, store: ClusterBackend) -> None:
        self._store = store

    def totals(self) -> Counted:
        found: dict[tuple[str, str], Count] = {}
        for _, flat in self._parts(""):
            add_fields(found, flat)
        return found

    def hours(self, number: int) -> list[Hour]:
        found: dict[int, dict[tuple[str, str], Count]] = {}
        for hour, flat in self._parts(str(number)):
            add_fields(found.setdefault(int(hour) * 3600, {}), flat)
        return [Hour(at, found[at]) for at in sorted(found)]

    def _parts(self, hours: str) -> list[tuple[bytes, list[bytes]]]:
        asks = [
            self._store.ask(place, TOTALS, self._store.bucket(place).layout.index + bulk(hours))
            for place in self._store.places
        ]
        return [part for reply in self._store.ask_all(asks) for part in zip(reply[::2], reply[1::2], strict=True)]

    def add(self, event: str, kind: str) -> None:
        self._store.of(kind).metrics.add(event, kind)

    def holds(self, name: str, limit: int) -> list[HoldRecord]:
        return self._store.of(name).metrics.holds(name, limit)
