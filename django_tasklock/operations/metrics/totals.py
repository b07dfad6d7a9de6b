"""Counts from the store, and of messages from the database."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

from django.core.exceptions import ImproperlyConfigured

from django_tasklock.backends import get_backend
from django_tasklock.backends.contract.metrics import Counted, Metrics, merged
from django_tasklock.exceptions import TaskLockError
from django_tasklock.operations.metrics.values import HourOfCounts, Totals, totals_of

logger = logging.getLogger("django_tasklock")

T = TypeVar("T")


def read_totals() -> Totals:
    """Return all counts. They only grow, but restart at zero when the store loses its data.

    Messages are counted in the database; while it is down they are left out and a warning is logged. Raises
    ``BackendUnavailable``, and ``TaskLockError`` if the store has no counts.
    """
    metrics = get_backend().metrics
    return totals_of(merged(metrics.totals(), _read_message_counts(metrics, lambda messages: messages.totals()) or {}))


def read_hours(number: int = 24) -> list[HourOfCounts]:
    """Return the counts of each of the last hours, the current one last; two weeks are stored.

    Hours without counts are left out. Raises as ``read_totals`` does.
    """
    metrics = get_backend().metrics
    hours: dict[int, Counted] = {}
    found = metrics.hours(number)
    for hour in (*found, *(_read_message_counts(metrics, lambda messages: messages.hours(number)) or ())):
        hours[hour.at] = merged(hours.get(hour.at, {}), hour.counted)
    return [HourOfCounts(datetime.fromtimestamp(at, UTC), totals_of(hours[at])) for at in sorted(hours)]


def _read_message_counts(metrics: Metrics, read: Callable[[Metrics], T]) -> T | None:
    """Return the database's counts of messages; ``None`` if the store is the database, or if it is down."""
    from django_tasklock.backends.database.metrics import DatabaseMetrics

    if isinstance(metrics, DatabaseMetrics):
        return None
    try:
        return read(DatabaseMetrics())
    except (TaskLockError, ImproperlyConfigured) as error:
        logger.warning("metrics: messages are left out, the database could not be asked: %s", error)
        return None
