"""The present state of locks, limiters, messages, sweeps and the broker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.db import Error

from django_tasklock.backends import get_backend
from django_tasklock.backends.contract import lists
from django_tasklock.exceptions import BackendUnavailable, TaskLockError
from django_tasklock.operations.limits.permits import list_permits
from django_tasklock.operations.limits.rates import list_limits
from django_tasklock.operations.limits.values import LimitState
from django_tasklock.operations.locks.listing import is_dead
from django_tasklock.operations.sweep.report import Kind
from django_tasklock.operations.sweep.runs import SweepRun, age_of, last_full_sweep
from django_tasklock.types import Record

logger = logging.getLogger("django_tasklock")

T = TypeVar("T")
MAX_LIMITERS = 100


@dataclass(frozen=True, slots=True)
class LimiterGauge:
    """The present state of a rate limit or a concurrency limiter."""

    limiter: str
    type: str
    """``rate`` or ``concurrency``."""
    used: int
    """Calls in the window that ends now, for the rate nearest to its limit; or the number of taken permits."""
    limit: int | None
    """The limit in force; ``None``: unknown."""
    waiting: int = 0
    paused: float = 0.0
    """Seconds until a pause ends, 0 if not paused."""

    @property
    def ratio(self) -> float | None:
        """The used share of the limit."""
        return self.used / self.limit if self.limit else None


@dataclass(frozen=True, slots=True)
class Gauges:
    """The present state. ``None``: the request failed, or the store does not support it."""

    store_up: bool = True
    held: int | None = None
    no_expiry: int | None = None
    orphaned: int | None = None
    dead: int | None = None
    """Held locks whose holder's process, on this machine, has ended."""
    waiting: int | None = None
    """Callers that wait for locks, of the ten thousand locks that expire first."""
    longest_held: float | None = None
    """Seconds for which the oldest lock has been held, among the same ten thousand."""
    parked: int | None = None
    """Messages parked in the database."""
    oldest_parked: float | None = None
    """Seconds since the oldest of them was parked; 0 if there is none."""
    last_sweep_age: float | None = None
    """Seconds since the last sweep of everything; ``None`` also if no such run is recorded."""
    stale_claims: int | None = None
    """Claimed rows without a live lock that the last full sweep did not restore; ``None``: no such run is recorded."""
    limiters: Sequence[LimiterGauge] = field(default=())


def read_gauges() -> Gauges:
    """Return the present state. A value that fails is ``None`` and logged. Never raises ``BackendUnavailable``."""
    try:
        get_backend().condition()
    except BackendUnavailable as error:
        logger.warning("metrics: the store could not be asked: %s", error)
        return Gauges(store_up=False, parked=_count_parked(), oldest_parked=_read_oldest_parked())
    counts, live = _read_or_none("locks", _read_locks) or (None, None)
    last = _read_or_none("the last sweep", last_full_sweep)
    return Gauges(
        held=None if counts is None else counts.live,
        no_expiry=None if counts is None else counts.no_expiry,
        orphaned=None if counts is None else counts.orphaned,
        dead=None if live is None else sum(map(is_dead, live)),
        waiting=None if live is None else sum(record.waiting for record in live),
        longest_held=None if live is None else max([max(0, one.now - one.at) / 1000 for one in live], default=0.0),
        limiters=[
            *(_read_or_none("rate limits", _read_rate_gauges) or ()),
            *(_read_or_none("permits", _read_permit_gauges) or ()),
        ],
        parked=_count_parked(),
        oldest_parked=_read_oldest_parked(),
        last_sweep_age=None if last is None else age_of(last),
        stale_claims=None if last is None else _stale_claims(last),
    )


def _read_locks() -> tuple[lists.Counts, list[Record]]:
    backend = get_backend()
    return backend.counts(), lists.read(backend)[0]


def _stale_claims(last: SweepRun) -> int:
    return last.counts.get(Kind.ABANDONED, {}).get("kept", 0)


def _count_parked() -> int | None:
    from django_tasklock.celery import count_parked

    return _read_or_none("parked messages", count_parked)


def _read_oldest_parked() -> float | None:
    from django_tasklock.celery import parked_messages

    oldest = _read_or_none("parked messages", lambda: parked_messages(state="parked", limit=1))
    return None if oldest is None else max([one.waited for one in oldest], default=0.0)


def _read_rate_gauges() -> list[LimiterGauge]:
    found = []
    for view in list_limits(limit=MAX_LIMITERS).limits:
        if view.usage is None or view.state is LimitState.IDLE:
            continue
        window = max(view.usage.windows, key=lambda one: one.used / max(1, one.limit))
        found.append(LimiterGauge(view.name, "rate", window.used, window.limit, view.waiting, view.usage.paused))
    return found


def _read_permit_gauges() -> list[LimiterGauge]:
    return [
        LimiterGauge(view.name, "concurrency", view.used, view.limit, waiting=view.waiting)
        for view in list_permits(limit=MAX_LIMITERS).limiters
    ]


def _read_or_none(what: str, read: Callable[[], T | None]) -> T | None:
    """Return the result of ``read``; ``None``, and a log line, if it fails."""
    try:
        return read()
    except (TaskLockError, ImproperlyConfigured, Error) as error:
        logger.info("metrics: %s: %s", what, error)
        return None


def count_messages() -> dict[str, int] | None:
    """Return the number of messages of each queue: waiting, parked, and fetched but not acknowledged.

    ``None``: the broker is not Redis or does not answer, or the database does not, which is logged. Takes a few seconds
    at most.
    """
    from django_tasklock.celery.messages.queues import messages_by_queue

    try:
        return messages_by_queue()
    except Exception as error:
        logger.info("metrics: the messages could not be counted: %r", error)
        return None


def count_stuck() -> int | None:
    """Return the number of messages that do not go on: of slots that hang, or of tasks that outlive their locks.

    ``None``: messages have no leases, or the broker does not answer, which is logged. Takes a few seconds at most.
    """
    from django_tasklock.celery.messages import marks

    try:
        if marks.project_lease() is None:
            return None
        return sum(one.stuck for one in marks.project_marks() if one.is_current)
    except Exception as error:
        logger.info("metrics: the broker could not be asked: %r", error)
        return None
