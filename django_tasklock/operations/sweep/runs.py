"""The recorded runs of the sweep: when it last ran, and what it repaired."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from django.core.exceptions import ImproperlyConfigured
from django.db import Error, router
from django.utils import timezone

from django_tasklock.celery.task_modules import import_task_modules
from django_tasklock.db.fresh import fresh
from django_tasklock.guards.guard import registered
from django_tasklock.operations.datetimes import with_zone
from django_tasklock.operations.plain import to_plain
from django_tasklock.operations.sweep.report import SweepReport
from django_tasklock.texts import printable

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from django_tasklock.models import SweepEntry
    from django_tasklock.operations.sweep.options import SweepOptions

logger = logging.getLogger("django_tasklock")

MAX_RUNS = 1000
"""Runs that are stored: at one per minute, those of the last sixteen hours."""
OVERDUE = 900.0
"""Seconds after which the next sweep is overdue: it is to run every five minutes."""


@dataclass(frozen=True, slots=True)
class SweepRun:
    """One run of the sweep. Dry runs are not recorded."""

    number: int
    at: datetime
    """When it ended."""
    actor: str
    scope: str
    """The restriction of the run, such as ``prefix=video:``; empty: it swept everything."""
    swept: int
    """The number of findings that were repaired."""
    seconds: float
    problem: str
    """Why it stopped early; empty if it did not."""
    counts: Mapping[str, Mapping[str, int]]
    """``SweepReport.counts``, as JSON has them. All actions are in the audit trail."""


def record_run(options: SweepOptions, report: SweepReport, problem: str = "") -> int | None:
    """Record that a sweep has run, and return the run's number; ``None`` if it is not recorded.

    Dry runs are not. If the database fails, that is logged and the sweep goes on.
    """
    from django_tasklock.models import SweepEntry

    if options.dry_run:
        return None
    runs = SweepEntry._base_manager.using(router.db_for_write(SweepEntry))
    try:
        entry = runs.create(
            at=timezone.now(),
            actor=printable(options.by.name),
            scope=printable(_describe_scope(options)),
            swept=report.swept,
            seconds=report.seconds,
            problem=printable(problem),
            counts=to_plain(report.counts),
        )
        runs.filter(pk__lte=entry.pk - MAX_RUNS).delete()
    except (Error, ImproperlyConfigured) as error:
        logger.warning("sweep: its run could not be recorded: %s", error)
        return None
    return entry.pk


def sweep_runs(limit: int = 20) -> list[SweepRun]:
    """Return the last runs of the sweep, the latest first. Raises database errors."""
    return [_to_run(entry) for entry in _entries().order_by("-id")[:limit]]


def find_sweep_run(number: int) -> SweepRun | None:
    """Return one run; ``None`` if it is not stored. Raises database errors."""
    entry = _entries().filter(pk=number).first()
    return None if entry is None else _to_run(entry)


def last_full_sweep() -> SweepRun | None:
    """Return the last sweep of everything; ``None`` if none is stored. Raises database errors.

    Runs that stopped early, or were restricted, do not count.
    """
    entry = _entries().filter(scope="", problem="").order_by("-id").first()
    return None if entry is None else _to_run(entry)


def last_sweep_age() -> float | None:
    """Return seconds since ``last_full_sweep``; ``None`` if there is none. Raises database errors."""
    last = last_full_sweep()
    return None if last is None else age_of(last)


def overdue_sweep() -> str:
    """Return, as a sentence, that no sweep runs although rows are guarded; empty if one does, or none is guarded.

    Imports the project's task modules, which have the guards. Raises database errors.
    """
    import_task_modules()
    if not registered() or ((age := last_sweep_age()) is not None and age <= OVERDUE):
        return ""
    last = "none is recorded" if age is None else f"the last one was {age / 60:.0f} minutes ago"
    return f"no complete sweep in {OVERDUE / 60:.0f} minutes, {last}: what dead workers left of guarded rows stays"


def age_of(run: SweepRun) -> float:
    """Return seconds since the run."""
    return max(0.0, (datetime.now(UTC) - run.at).total_seconds())


def _entries() -> QuerySet[SweepEntry]:
    from django_tasklock.models import SweepEntry

    return fresh(SweepEntry._base_manager.using(router.db_for_read(SweepEntry)))


def _describe_scope(options: SweepOptions) -> str:
    parts = []
    if options.prefix:
        parts.append(f"prefix={options.prefix}")
    if options.models:
        parts.append(f"models={','.join(sorted(model._meta.label_lower for model in options.models))}")
    if options.age is not None:
        parts.append(f"older_than={options.age / 1000:g}")
    return " ".join(parts)


def _to_run(entry: SweepEntry) -> SweepRun:
    return SweepRun(
        number=entry.pk,
        at=with_zone(entry.at),
        actor=entry.actor,
        scope=entry.scope,
        swept=entry.swept,
        seconds=entry.seconds,
        problem=entry.problem,
        counts=entry.counts,
    )
