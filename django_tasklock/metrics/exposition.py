"""The stores' counts and the present state as Prometheus metrics, read at each scrape.

    REGISTRY.register(StoreCollector())

One process of a project is enough, whichever: the counts are those of all. Needs ``prometheus-client``.
"""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from django_tasklock.db.pools import figures, longest_held, timeouts
from django_tasklock.exceptions import TaskLockError
from django_tasklock.metrics.table import BY_NAME
from django_tasklock.operations.metrics import (
    Gauges,
    Histogram,
    LimiterCounts,
    Totals,
    count_messages,
    count_stuck,
    read_gauges,
    read_totals,
)

logger = logging.getLogger("django_tasklock")

Values = Mapping[tuple[str, ...], Any]
"""Label values -> number or histogram."""


class StoreCollector(Collector):
    """Counts of all processes, gauges of the store and the database, and the connections of this process.

    Values that cannot be read are left out and logged; ``tasklock_store_up`` is always present.
    """

    def collect(self) -> Iterator[Family]:
        """Read the store and the database, with a few requests each."""
        values: dict[str, dict[tuple[str, ...], Any]] = defaultdict(dict)
        gauges = read_gauges()
        _add_gauges(values, gauges)
        if gauges.store_up:
            try:
                _add_totals(values, read_totals())
            except (TaskLockError, ImproperlyConfigured) as error:
                logger.warning("metrics: the counts could not be read: %s", error)
        for queue, number in (count_messages() or {}).items():
            values["tasklock_queue_messages"][queue,] = number
        if (stuck := count_stuck()) is not None:
            values["tasklock_messages_stuck"][()] = stuck
        _add_connections(values)
        for name, found in values.items():
            if found:
                yield make_metric(name, found)

    def describe(self) -> Iterable[Family]:
        """Return nothing, so that registering the collector causes no requests."""
        return ()


def make_metric(name: str, values: Values) -> Any:
    """Return the metric of this name with its values."""
    pattern = re.sub(r"^.*(?=_rate_limiter_(requests|wait|throttled))", "{limiter}", name)
    metric = BY_NAME[pattern]
    labels = list(metric.labels)
    if metric.type == "histogram":
        histograms: Any = HistogramMetricFamily(name, metric.help, labels=labels)
        for key, one in values.items():
            histograms.add_metric(list(key), _cumulative_buckets(one), one.seconds)
        return histograms
    if metric.type == "counter" and name.endswith("_total"):
        found: Any = CounterMetricFamily(name.removesuffix("_total"), metric.help, labels=labels)
    elif metric.type == "counter":  # the name is given; a sample of a counter would have to end with _total
        found = Family(name, metric.help, "unknown")
        for key, number in values.items():
            found.add_sample(name, dict(zip(labels, key, strict=True)), number)
        return found
    else:
        found = GaugeMetricFamily(name, metric.help, labels=labels)
    for key, number in values.items():
        found.add_metric(list(key), number)
    return found


def _cumulative_buckets(histogram: Histogram) -> list[tuple[str, float]]:
    buckets, below = [], 0
    bounds = [*map(str, map(float, histogram.bounds)), "+Inf"]
    for bound, number in zip(bounds, histogram.buckets, strict=True):
        below += number
        buckets.append((bound, float(below)))
    return buckets


def _add_totals(values: dict[str, dict[tuple[str, ...], Any]], totals: Totals) -> None:
    for kind in totals.kinds:
        key = (kind.kind,)
        for event in ("acquired", "released", "expired", "deleted", "forced", "transferred", "lost"):
            values[f"tasklock_{event}_total"][key] = getattr(kind, event)
        for action, number in kind.conflicts.items():
            values["tasklock_conflicts_total"][kind.kind, action] = number
        values["tasklock_wait_seconds"][key] = kind.wait
        values["tasklock_hold_seconds"][key] = kind.hold
    for limiter in totals.limiters:
        key = (limiter.limiter,)
        values["tasklock_limiter_granted_total"][limiter.limiter, "at_once"] = limiter.at_once
        values["tasklock_limiter_granted_total"][limiter.limiter, "waited"] = limiter.wait.count
        buckets = (limiter.wait.buckets[0] + limiter.at_once, *limiter.wait.buckets[1:])
        values["tasklock_limiter_wait_seconds"][key] = Histogram(buckets, limiter.wait.seconds)
        if limiter.hold.count:
            values["tasklock_limiter_hold_seconds"][key] = limiter.hold
        for event in ("refused", "cancelled", "pushback", "expired", "forced"):
            values[f"tasklock_limiter_{event}_total"][key] = getattr(limiter, event)
    for name, limiters_of_metric in _group_by_metric_name(
        [limiter for limiter in totals.limiters if not limiter.is_concurrency]
    ).items():
        granted = sum(limiter.granted for limiter in limiters_of_metric)
        mean = sum(limiter.wait.seconds for limiter in limiters_of_metric) / granted if granted else 0.0
        values[f"{name}_rate_limiter_wait_time"][()] = mean
        throttled = sum(limiter.wait.count + limiter.refused for limiter in limiters_of_metric)
        values[f"{name}_rate_limiter_throttled_count"][()] = throttled
    for message in totals.messages:
        for event in ("parked", "promoted", "superseded", "taken_over"):
            values["tasklock_messages_total"][message.kind, event] = getattr(message, event)
    for model, number in totals.stale_writes.items():
        values["tasklock_stale_writes_total"][model,] = number
    values["tasklock_message_renewals_late_total"][()] = totals.late_renewals


def _add_gauges(values: dict[str, dict[tuple[str, ...], Any]], gauges: Gauges) -> None:
    values["tasklock_store_up"][()] = int(gauges.store_up)
    for name, number in (
        ("tasklock_held", gauges.held),
        ("tasklock_no_expiry", gauges.no_expiry),
        ("tasklock_orphaned", gauges.orphaned),
        ("tasklock_waiting", gauges.waiting),
        ("tasklock_longest_held_seconds", gauges.longest_held),
        ("tasklock_parked", gauges.parked),
        ("tasklock_oldest_parked_seconds", gauges.oldest_parked),
        ("tasklock_last_sweep_age_seconds", gauges.last_sweep_age),
        ("tasklock_stale_claims", gauges.stale_claims),
    ):
        if number is not None:
            values[name][()] = number
    for limiter in gauges.limiters:
        key = (limiter.limiter,)
        if limiter.ratio is not None:
            values["tasklock_limiter_used_ratio"][key] = limiter.ratio
        values["tasklock_limiter_waiting"][key] = limiter.waiting
        if limiter.type == "concurrency":
            values["tasklock_limiter_members"][key] = limiter.used
            continue
        values["tasklock_limiter_paused_seconds"][key] = limiter.paused
        if limiter.per_minute is not None:
            of_name = values[f"{_metric_name(limiter.limiter)}_rate_limiter_requests_per_minute"]
            of_name[()] = of_name.get((), 0.0) + limiter.per_minute


def _add_connections(values: dict[str, dict[tuple[str, ...], Any]]) -> None:
    for alias in connections:
        values["db_pool_connections_in_use"][alias,] = figures(alias).checked_out
        values["db_connection_hold_time"][alias,] = longest_held(alias)
        values["db_pool_connection_timeouts"][alias,] = timeouts(alias)


def _group_by_metric_name(limiters: Sequence[LimiterCounts]) -> dict[str, list[LimiterCounts]]:
    """Group limiters by their part of a metric's name: names that differ only in replaced characters are one metric."""
    found: dict[str, list[LimiterCounts]] = defaultdict(list)
    for limiter in limiters:
        found[_metric_name(limiter.limiter)].append(limiter)
    return found


def _metric_name(limiter: str) -> str:
    """Return a limiter's name as a part of a metric's name."""
    name = re.sub(r"[^a-zA-Z0-9_]", "_", limiter)
    return f"_{name}" if name[:1].isdigit() else name
