"""What happened to locks in this process, counted: for a health page, a log line or Prometheus.

The app's ``ready()`` installs it. A forked process begins at zero.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from django_tasklock import signals
from django_tasklock.exceptions import TaskLockError

__all__ = ["collector", "install", "snapshot"]

_TROUBLE = {
    signals.lock_conflict: "conflicts_{action}",
    signals.lock_lost: "lost",
    signals.lock_forced: "forced",
    signals.lock_asked: "asked",
    signals.store_unavailable: "unavailable",
    signals.claim_rejected: "claims_rejected",
    signals.claim_stale: "claims_stale",
}
_ACQUISITIONS = {signals.lock_acquired: "acquired", signals.lock_released: "released"}

logger = logging.getLogger("django_tasklock")

_counts: dict[str, int] = {}
_mutex = threading.RLock()


def install(*, acquisitions: bool = False) -> None:
    """Begin to count. ``acquisitions``: also ``acquired`` and ``released``, for which every lock pays a little."""
    for signal, what in (_TROUBLE | _ACQUISITIONS if acquisitions else _TROUBLE).items():
        _count(what, 0, action="skip")  # a rate needs the zero before the first event
        signal.connect(partial(_count, what, 1), weak=False, dispatch_uid="tasklock.metrics")


def snapshot() -> dict[str, int]:
    """The counts: ``lost``, ``forced``, ``asked``, ``unavailable``, ``claims_rejected``, ``claims_stale``, and for each
    action on a busy lock one such as ``conflicts_skip``. What is not counted is not in it."""
    with _mutex:
        return dict(_counts)


def collector(*, store: bool = False) -> Any:
    """A collector for ``prometheus_client.REGISTRY.register()``; ``ImportError`` without that package.

    It reads the counts of its own process; Prometheus' multiprocess mode does not ask it. ``store``: at each scrape it
    also asks the store how many locks there are, ``tasklock_locks{state="live"}``..., and the database how many
    messages are parked, ``tasklock_parked``: in one process of a project that is enough. What cannot be asked is left
    out, and logged.
    """
    from prometheus_client.core import CounterMetricFamily as Family, GaugeMetricFamily as Gauge

    from django_tasklock.celery import count_parked
    from django_tasklock.operations import count_locks

    class Collector:
        def collect(self) -> Iterator[Any]:
            conflicts = Family("tasklock_conflicts", "Calls that met a busy lock.", labels=["action"])
            for what, number in snapshot().items():
                if what.startswith("conflicts_"):
                    conflicts.add_metric([what.removeprefix("conflicts_")], number)
                else:
                    yield Family(f"tasklock_{what}", "See django_tasklock.metrics.", value=number)
            yield conflicts
            if store:
                yield from gauges()

    def gauges() -> Iterator[Any]:
        states = Gauge("tasklock_locks", "Locks in the store; live ones include the next two.", labels=["state"])
        for what, ask in (("locks", count_locks), ("parked messages", count_parked)):
            try:
                found = ask()
            except (TaskLockError, ImproperlyConfigured) as error:
                logger.warning("metrics: the %s could not be counted: %s", what, error)
                continue
            if isinstance(found, int):
                yield Gauge("tasklock_parked", "Messages that wait for their locks in the database.", value=found)
                continue
            for state, number in zip(("live", "expiring", "no_expiry", "orphaned"), found, strict=True):
                states.add_metric([state], number)
            yield states

    return Collector()


def _count(template: str, number: int, **details: object) -> None:
    what = template.format_map(details)
    with _mutex:
        _counts[what] = _counts.get(what, 0) + number


def _after_fork() -> None:
    global _mutex
    _mutex = threading.RLock()  # the other one may be held by a thread that is not here
    _counts.update(dict.fromkeys(_counts, 0))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
