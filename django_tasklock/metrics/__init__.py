"""Counts of what happened to locks in this process, for a health page, a log line or Prometheus.

The app's ``ready()`` installs it. A forked process starts at zero.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from django_tasklock import signals
from django_tasklock.exceptions import TaskLockError
from django_tasklock.process import check_process

_EVENTS = {
    signals.lock_conflict: "conflicts_{action}",
    signals.lock_lost: "lost",
    signals.lock_forced: "forced",
    signals.lock_asked: "asked",
    signals.store_unavailable: "unavailable",
    signals.claim_rejected: "claims_rejected",
    signals.claim_stale: "claims_stale",
    signals.messages_late: "messages_late",
}
_RATE_EVENTS = {
    signals.rate_granted: "rates_granted_{how}",
    signals.rate_refused: "rates_refused",
    signals.rate_cancelled: "rates_cancelled",
    signals.rate_late: "rates_late",
    signals.rate_pushback: "rates_pushback",
    signals.rate_unavailable: "rates_unavailable_{action}",
}
_IN_STORE = {signals.lock_lost: "LOST", signals.claim_stale: "STALE", signals.messages_late: "LATE"}
"""Names in the store's own table, which is imported at the first count."""
_OUTAGE_ACTIONS = ("closed", "open", "local")
_ACQUISITION_EVENTS = {signals.lock_acquired: "acquired", signals.lock_released: "released"}

logger = logging.getLogger("django_tasklock")

_counts: dict[str, int] = {}
_limiters: dict[str, dict[str, int]] = {}
_mutex = threading.RLock()
MAX_LIMITERS = 200  # limiters counted by name; further ones are counted together


def install(*, acquisitions: bool = False) -> None:
    """Start counting. ``acquisitions``: also count ``acquired`` and ``released``, at a small cost for every lock."""
    for signal, what in (_EVENTS | _ACQUISITION_EVENTS if acquisitions else _EVENTS).items():
        _count(what, 0, action="skip")  # a rate needs the zero before the first event
        signal.connect(partial(_count, what, 1), weak=False, dispatch_uid="tasklock.metrics")
    for signal, event in _IN_STORE.items():
        signal.connect(partial(_count_in_store, event), weak=False, dispatch_uid="tasklock.metrics.store")
    for signal, what in _RATE_EVENTS.items():
        outcomes = ({"how": "at_once"}, {"how": "waited"})
        for details in outcomes if "{how}" in what else ({"action": action} for action in _OUTAGE_ACTIONS):
            _count(what, 0, **details)
        signals.count(signal, partial(_count_rate, what))  # Django's receivers would cost more than the call itself


def snapshot() -> dict[str, int]:
    """Return the counts: ``lost``, ``forced``, ``asked``, ``unavailable``, ``claims_rejected``, ``claims_stale``, one
    for each action on a busy lock such as ``conflicts_skip``, and for rate limits ``rates_refused`` and others. Events
    that are not counted are missing.
    """
    check_process()
    with _mutex:
        return dict(_counts)


def limiters() -> dict[str, dict[str, int]]:
    """Return the counts of rate limits by limiter: ``granted_at_once``, ``granted_waited``, ``refused``, ``cancelled``,
    ``late``, ``pushback``, ``unavailable_closed`` ..., and ``waited_ms``. All tenants of a limiter are counted
    together, as ``tavily:tenant``.
    """
    check_process()
    with _mutex:
        return {name: dict(counts) for name, counts in _limiters.items()}


def collector(*, store: bool = False) -> Any:
    """Return a collector for ``prometheus_client.REGISTRY.register()``. Raises ``ImportError`` without that package.

    It reads the counts of its own process; Prometheus' multiprocess mode does not call it. ``store``: at each scrape it
    also reads the number of locks from the store, ``tasklock_locks{state="live"}``..., and of parked messages from the
    database, ``tasklock_parked``; one process of a project should do that. Values that cannot be read are left out, and
    logged.
    """
    from prometheus_client.core import CounterMetricFamily as Family, GaugeMetricFamily as Gauge

    from django_tasklock.backends import get_backend
    from django_tasklock.celery import count_parked

    class Collector:
        def collect(self) -> Iterator[Any]:
            rates = Family("tasklock_rates", "What happened at a rate limit.", labels=["limiter", "event"])
            waited = Family("tasklock_rates_waited_seconds", "Time spent waiting for it.", labels=["limiter"])
            for name, counts in limiters().items():
                for event, number in counts.items():
                    if event != "waited_ms":
                        rates.add_metric([name, event], number)
                waited.add_metric([name], counts.get("waited_ms", 0) / 1000)
            yield rates
            yield waited
            conflicts = Family("tasklock_conflicts", "Calls that found the lock busy.", labels=["action"])
            for what, number in snapshot().items():
                if what.startswith("conflicts_"):
                    conflicts.add_metric([what.removeprefix("conflicts_")], number)
                elif not what.startswith("rates_"):
                    yield Family(f"tasklock_{what}", "See django_tasklock.metrics.", value=number)
            yield conflicts
            if store:
                yield from gauges()

    def gauges() -> Iterator[Any]:
        states = Gauge("tasklock_locks", "Locks in the store; live ones include the next two.", labels=["state"])
        for what, read in (("locks", lambda: get_backend().counts()), ("parked messages", count_parked)):
            try:
                found = read()
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
    check_process()
    with _mutex:
        _counts[what] = _counts.get(what, 0) + number


def _count_in_store(event: str, sender: str, **details: Any) -> None:
    """Count, by a request of its own, a rare event that no script of the store counts."""
    from django_tasklock.backends import get_backend
    from django_tasklock.backends.contract import metrics as table
    from django_tasklock.conf import get_settings

    settings = get_settings()
    if not settings.METRICS:
        return
    kind = details["model"]._meta.label_lower if event == "STALE" else getattr(details.get("lock"), "kind", "")
    try:
        get_backend().metrics.add(getattr(table, event), kind)
    except (TaskLockError, ImproperlyConfigured) as error:
        logger.debug("metrics: %s was not counted in the store: %s", event, error)


def _count_rate(
    template: str, sender: str, wait: float = 0.0, how: str = "", action: str = "", **details: object
) -> None:
    name, is_tenant = _limiter_label(sender)
    what, event = _count_names(template, how, action)
    check_process()
    with _mutex:
        if not is_tenant:  # a tenant's call is counted at the shared limit, too
            _counts[what] = _counts.get(what, 0) + 1
        counts = _limiters.get(name)
        if counts is None:
            counts = _limiters.setdefault(name if len(_limiters) < MAX_LIMITERS else "(others)", {})
        counts[event] = counts.get(event, 0) + 1
        if wait and how:
            counts["waited_ms"] = counts.get("waited_ms", 0) + round(wait * 1000)


@lru_cache(maxsize=1024)
def _limiter_label(sender: str) -> tuple[str, bool]:
    # Processes that count rates have imported it already; others need not.
    from django_tasklock.backends.contract.rates import TENANT, split_tenant

    name, tenant = split_tenant(sender)
    return (name, False) if tenant is None else (name + TENANT.rstrip(":"), True)


@lru_cache(maxsize=64)
def _count_names(template: str, how: str, action: str) -> tuple[str, str]:
    what = template.format(how=how, action=action)
    return what, what.removeprefix("rates_")


def forget() -> None:
    """Set all counts to zero."""
    with _mutex:
        _counts.update(dict.fromkeys(_counts, 0))
        _limiters.clear()


def after_fork() -> None:
    """Start at zero in the child process."""
    global _mutex
    _mutex = threading.RLock()  # the old one may be held by a thread of the parent
    forget()
