"""All metrics, read at each scrape: the counts by one query, and what is held and waits now.

    REGISTRY.register(TaskLockCollector())

One process of a project is enough, whichever: but for the connections, the numbers are those of all processes. Needs
``prometheus-client``.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from django_tasklock import counts
from django_tasklock.counts import BOUNDS, Count
from django_tasklock.db.pools import figures, longest_open, timeouts
from django_tasklock.exceptions import TaskLockError
from django_tasklock.operations.state import Gauges, count_messages, count_stuck, read_gauges

logger = logging.getLogger("django_tasklock")


class Metric(NamedTuple):
    """The name of a metric, without the ``_total`` of a counter, its labels and its text."""

    name: str
    labels: tuple[str, ...]
    help: str


KIND, LIMITER = ("kind",), ("limiter",)

COUNTERS = {
    counts.ACQUIRED: Metric("tasklock_acquired", KIND, "Locks that were granted."),
    counts.RELEASED: Metric("tasklock_released", KIND, "Locks that their holders released."),
    counts.EXPIRED: Metric("tasklock_expired", KIND, "Leases that ran out, counted when that is noticed."),
    counts.FORCED: Metric("tasklock_forced", KIND, "Locks that were released by force."),
    counts.LOST: Metric("tasklock_lost", KIND, "Holders that learned, while they ran, that they had lost the lock."),
    counts.CONFLICT: Metric("tasklock_conflicts", ("kind", "action"), "Times that a lock was busy, by what was done."),
    counts.GRANTED: Metric("tasklock_limiter_granted", ("limiter", "how"), "Calls let through, at_once or waited."),
    counts.REFUSED: Metric("tasklock_limiter_refused", LIMITER, "Calls that were refused."),
    counts.CANCELLED: Metric("tasklock_limiter_cancelled", LIMITER, "Reservations that were cancelled."),
    counts.PUSHBACK: Metric("tasklock_limiter_pushback", LIMITER, "Pauses that the remote side requested."),
    counts.PERMIT_EXPIRED: Metric("tasklock_limiter_expired", LIMITER, "Permits whose lease ran out."),
    counts.PERMIT_FORCED: Metric("tasklock_limiter_forced", LIMITER, "Permits that were released by force."),
    "message": Metric("tasklock_messages", ("kind", "event"), "Parked messages: parked, promoted ... by task."),
    counts.STALE: Metric("tasklock_stale_writes", ("model",), "Refused writes of stale claims."),
    counts.LATE: Metric("tasklock_message_renewals_late", (), "Times that a worker renewed its messages too late."),
}
"""The counters by the event that they count."""

HISTOGRAMS = {
    counts.WAITED: Metric("tasklock_wait_seconds", KIND, "Seconds from asking for a lock to having it."),
    counts.RELEASED: Metric("tasklock_hold_seconds", KIND, "Seconds for which released locks were held."),
    counts.GRANTED_LATE: Metric(
        "tasklock_limiter_wait_seconds", LIMITER, "Seconds for which calls had to wait; at once is 0."
    ),
    counts.PERMIT_RELEASED: Metric(
        "tasklock_limiter_hold_seconds", LIMITER, "Seconds for which released permits were held."
    ),
}
"""The histograms by the event with the duration."""

AT_ONCE = {counts.WAITED: counts.ACQUIRED, counts.GRANTED_LATE: counts.GRANTED}
"""What an event with a wait is without one. Both are counted together, and have their places in the histogram."""

GAUGES = {
    "held": Metric("tasklock_held", (), "Locks that are held now."),
    "no_expiry": Metric("tasklock_no_expiry", (), "Held locks that nothing but a release ends."),
    "orphaned": Metric("tasklock_orphaned", (), "Locks whose lease ran out, which is not detected yet."),
    "waiting": Metric("tasklock_waiting", (), "Callers that wait in their processes for a lock."),
    "longest_held": Metric("tasklock_longest_held_seconds", (), "Seconds for which the oldest hold has lasted."),
    "parked": Metric("tasklock_parked", (), "Messages that wait for their locks in the database."),
    "oldest_parked": Metric("tasklock_oldest_parked_seconds", (), "Seconds since the oldest of them was parked."),
    "last_sweep_age": Metric(
        "tasklock_last_sweep_age_seconds", (), "Seconds since the last sweep of everything; missing if there is none."
    ),
    "stale_claims": Metric("tasklock_stale_claims", (), "Claimed rows without a live lock that the last sweep left."),
}
"""The gauges by the field of ``Gauges``."""

STORE_UP = Metric("tasklock_store_up", (), "1 if the store answers, else 0.")
QUEUE_MESSAGES = Metric(
    "tasklock_queue_messages",
    ("queue",),
    "Messages of a queue (Redis): waiting, parked, and fetched but not acknowledged.",
)
STUCK = Metric(
    "tasklock_messages_stuck",
    (),
    "Messages that do not go on: of slots that hang, or of tasks that outlive their locks.",
)
MEMBERS = Metric("tasklock_limiter_members", LIMITER, "Permits of a concurrency limiter that are taken now.")
USED = Metric("tasklock_limiter_used_ratio", LIMITER, "Share of the limit that is used, 0 to 1, of its fullest rate.")
WAITING = Metric("tasklock_limiter_waiting", LIMITER, "Calls that wait for their turn.")
PAUSED = Metric("tasklock_limiter_paused_seconds", LIMITER, "Seconds until the end of a pause, 0 if not paused.")
IN_USE = Metric("db_pool_connections_in_use", ("database",), "Connections of this process that are in use.")
OPEN_FOR = Metric("db_connection_hold_time", ("database",), "Seconds since the oldest open connection was opened.")
TIMEOUTS = Metric("db_pool_connection_timeouts", ("database",), "Times that no connection was free in time.")

Samples = Mapping[tuple[str, ...], float]
"""Label values -> number."""


class TaskLockCollector(Collector):
    """Counts and state of all processes, and the connections of this one.

    Values that cannot be read are left out and logged; ``tasklock_store_up`` is always present.
    """

    def collect(self) -> Iterator[Family]:
        """Read the table of counts, the store and the broker."""
        try:
            counted = counts.read_totals()
        except (TaskLockError, ImproperlyConfigured) as error:
            logger.warning("metrics: the counts could not be read: %s", error)
        else:
            yield from _counters(counted)
            yield from _histograms(counted)
        yield from _gauges(read_gauges())
        queues = {(queue,): number for queue, number in (count_messages() or {}).items()}
        stuck = count_stuck()
        yield from _present((QUEUE_MESSAGES, queues), (STUCK, {} if stuck is None else {(): stuck}))
        yield from _connections()

    def describe(self) -> Iterable[Family]:
        """Return nothing, so that registering the collector causes no requests."""
        return ()


def _counters(counted: Sequence[Count]) -> Iterator[Family]:
    numbers: dict[str, dict[tuple[str, ...], int]] = defaultdict(lambda: defaultdict(int))
    for one in counted:
        event, labels = _labels_of(one)
        numbers[event][labels] += one.number
    for event, (name, labels_of, text) in COUNTERS.items():
        found = CounterMetricFamily(name, text, labels=labels_of)
        if not labels_of:  # present before it is first counted: otherwise no increase is seen then
            numbers[event].setdefault((), 0)
        for labels, number in sorted(numbers[event].items()):
            found.add_metric(labels, number)
        if found.samples:
            yield found


def _labels_of(one: Count) -> tuple[str, tuple[str, ...]]:
    """Return the event of the counter that counts this, and the values of its labels."""
    event, _, action = one.event.partition(":")
    if event == counts.CONFLICT:
        return event, (one.kind, action)
    if event.startswith("message."):
        return "message", (one.kind, event.removeprefix("message."))
    if event in (counts.GRANTED, counts.GRANTED_LATE):
        return counts.GRANTED, (one.kind, "waited" if event == counts.GRANTED_LATE else "at_once")
    event = AT_ONCE.get(event, event)
    return event, (one.kind,) if event not in COUNTERS or COUNTERS[event].labels else ()


def _histograms(counted: Sequence[Count]) -> Iterator[Family]:
    bounds = [*(str(bound / 1000) for bound in BOUNDS), "+Inf"]
    for event, (name, labels, text) in HISTOGRAMS.items():
        numbers: dict[str, list[int]] = defaultdict(lambda: [0] * len(bounds))
        seconds: dict[str, float] = defaultdict(float)
        for one in counted:
            if one.event in (event, AT_ONCE.get(event)):
                numbers[one.kind][one.bucket] += one.number
                seconds[one.kind] += one.milliseconds / 1000
        found = HistogramMetricFamily(name, text, labels=labels)
        for kind in sorted(numbers):
            below = [sum(numbers[kind][: number + 1]) for number in range(len(bounds))]
            found.add_metric([kind], list(zip(bounds, below, strict=True)), seconds[kind])
        if found.samples:
            yield found


def _gauges(gauges: Gauges) -> Iterator[Family]:
    yield from _present((STORE_UP, {(): int(gauges.store_up)}))
    for field, metric in GAUGES.items():
        value = getattr(gauges, field)
        if value is not None:
            yield from _present((metric, {(): value}))
    limiters = gauges.limiters
    waiting: Counter[tuple[str, ...]] = Counter()  # a rate limit and a concurrency limiter may have one name
    for one in limiters:
        waiting[one.limiter,] += one.waiting
    used = sorted((one.ratio, one.limiter) for one in limiters if one.ratio is not None)
    yield from _present(
        (MEMBERS, {(one.limiter,): one.used for one in limiters if one.type == "concurrency"}),
        (USED, {(limiter,): ratio for ratio, limiter in used}),  # of one name the fuller one, which comes later
        (WAITING, waiting),
        (PAUSED, {(one.limiter,): one.paused for one in limiters if one.type == "rate"}),
    )


def _connections() -> Iterator[Family]:
    yield from _present(
        (IN_USE, {(alias,): figures(alias).checked_out for alias in connections}),
        (OPEN_FOR, {(alias,): longest_open(alias) for alias in connections}),
    )
    # The name is given; a sample of a counter would have to end with _total.
    found = Family(TIMEOUTS.name, TIMEOUTS.help, "unknown")
    for alias in connections:
        found.add_sample(TIMEOUTS.name, {"database": alias}, timeouts(alias))
    yield found


def _present(*found: tuple[Metric, Samples | Any]) -> Iterator[Family]:
    """Yield gauges that have a value."""
    for (name, labels_of, text), samples in found:
        family = GaugeMetricFamily(name, text, labels=labels_of)
        for labels, number in samples.items():
            family.add_metric(labels, number)
        if samples:
            yield family
