"""The counts of the store of this process."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from django_tasklock.backends.contract.metrics import (
    HOURS_KEPT,
    MOST_KINDS,
    NAMES_KEPT,
    NOTED_FROM,
    OTHERS,
    Count,
    Counted,
    HoldRecord,
    Hour,
    Metrics,
    in_bucket,
    merged,
)
from django_tasklock.conf import get_settings

if TYPE_CHECKING:
    from django_tasklock.backends.memory.store import Store

HOUR = 3_600_000


class MemoryCounts:
    """Counts by hour, and the last holds by name. Callers of its methods hold the store's mutex."""

    def __init__(self) -> None:
        self.hours: dict[int, dict[tuple[str, str], Count]] = {}
        self.older: dict[tuple[str, str], Count] = {}
        self.kinds: set[str] = set()
        self.holds: dict[str, deque[HoldRecord]] = {}

    def add(self, now: int, event: str, kind: str | None, amount: int | None = None) -> None:
        """Count an event of a kind, unless that is ``None``. ``amount``: its duration in milliseconds."""
        if kind is None:
            return
        if kind not in self.kinds:
            if len(self.kinds) >= MOST_KINDS:
                kind = OTHERS
            self.kinds.add(kind)
        hour = self.hours.get(now // HOUR)
        if hour is None:
            hour = self.hours[now // HOUR] = {}
            for old in [old for old in self.hours if old <= now // HOUR - HOURS_KEPT]:
                self.older = merged(self.older, self.hours.pop(old))
        key = (event if amount is None else in_bucket(event, amount), kind)
        hour[key] = hour.get(key, Count()).plus(Count(1, amount or 0))

    def record_hold(self, hold: HoldRecord) -> None:
        """Record a hold that has ended, unless there is no history or the hold was short and released."""
        most = get_settings().HISTORY
        if not most or (hold.how == "released" and hold.ended_at - hold.at < NOTED_FROM):
            return
        before = self.holds.pop(hold.name, ())
        self.holds[hold.name] = deque((hold, *before), most)
        if len(self.holds) > NAMES_KEPT:
            del self.holds[next(iter(self.holds))]


class MemoryMetrics(Metrics):
    """The counts of this process."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def totals(self) -> Counted:
        with self._store.mutex:
            return merged(self._store.counts.older, *self._store.counts.hours.values())

    def hours(self, number: int) -> list[Hour]:
        with self._store.mutex:
            first = self._store.now() // HOUR - number + 1
            return [
                Hour(at * 3600, dict(found)) for at, found in sorted(self._store.counts.hours.items()) if at >= first
            ]

    def add(self, event: str, kind: str) -> None:
        with self._store.mutex:
            self._store.counts.add(self._store.now(), event, kind)

    def holds(self, name: str, limit: int) -> list[HoldRecord]:
        with self._store.mutex:
            return list(self._store.counts.holds.get(name, ()))[:limit]
