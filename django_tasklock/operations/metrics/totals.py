"""Counts of the store, and of the messages in the database."""

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
    """Return all that was counted. It never goes backwards, but begins at zero when the store loses its data.

    Messages are counted in the database: they are left out, and that is logged, while it cannot be asked. Raises
    ``BackendUnavailable``, ``TaskLockError`` where the store counts nothing.
    """
    metrics = get_backend().metrics
    return totals_of(merged(metrics.totals(), _of_messages(metrics, lambda messages: messages.totals()) or {}))


def read_hours(number: int = 24) -> list[HourOfCounts]:
    """Return what was counted in each of the last hours, the running one last; two weeks are kept.

    Hours in which nothing was counted are left out. Raises as ``read_totals`` does.
    """
    metrics = get_backend().metrics
    hours: dict[int, Counted] = {}
    found = metrics.hours(number)
    for hour in (*found, *(_of_messages(metrics, lambda messages: messages.hours(number)) or ())):
        hours[hour.at] = merged(hours.get(hour.at, {}), hour.counted)
    return [HourOfCounts(datetime.fromtimestamp(at, UTC), totals_of(hours[at])) for at in sorted(hours)]


def _of_messages(metrics: Metrics, ask: Callable[[Metrics], T]) -> T | None:
    """Return what the database says, unless that was asked anyway, or cannot be asked."""
    from django_tasklock.backends.database.metrics import DatabaseMetrics

    if isinstance(metrics, DatabaseMetrics):
        return None
    try:
        return ask(DatabaseMetrics())
    except (TaskLockError, ImproperlyConfigured) as error:
        logger.warning("metrics: messages are left out, the database could not be asked: %s", error)
        return None
