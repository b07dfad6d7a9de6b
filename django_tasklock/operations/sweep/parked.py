"""Messages parked behind a free lock, whose wake-up was lost."""

from __future__ import annotations

from collections.abc import Iterator

from django.core.exceptions import ImproperlyConfigured

from django_tasklock.celery.parking import stranded
from django_tasklock.celery.parking.stranded import Stranded
from django_tasklock.operations.sweep.options import SweepOptions
from django_tasklock.operations.sweep.report import Came, Finding, Kind, SweepLog
from django_tasklock.operations.sweep.stream import second_look


def sweep_parked(options: SweepOptions, notes: SweepLog) -> None:
    """Check twice, then promote each message as a worker would; concurrent attempts are harmless."""
    try:
        for batch in second_look(_suspects(options, notes), options.pause):
            for suspect in batch:
                with notes.acting(suspect.name, Kind.PARKED, f"{suspect.row.task}[{suspect.row.task_id}]"):
                    notes.add(_again(suspect, options))
            notes.write(options.by)
    except ImproperlyConfigured as error:
        notes.leave_out(f"parked messages: {error}")


def _suspects(options: SweepOptions, notes: SweepLog) -> Iterator[Stranded]:
    for looked in stranded.look():
        if options.over:
            return
        notes.looked_at["parked"] += 1
        if looked is None or not looked.name.startswith(options.prefix):
            continue
        if options.age is None or looked.waited >= options.age:
            yield looked


def _again(suspect: Stranded, options: SweepOptions) -> Finding:
    now = stranded.at(suspect.key)
    if now is None or now.row.task_id != suspect.row.task_id or now.row.changed_at != suspect.row.changed_at:
        return _finding(suspect, Came.CHANGED, "it was on its way at the second look, or its lock was held")
    if options.dry_run:
        return _finding(suspect, Came.WOULD, f"it has waited {suspect.waited / 1000:.0f} s, and the lock is free")
    if stranded.promote(suspect.key):
        return _finding(suspect, Came.SWEPT, f"it has waited {suspect.waited / 1000:.0f} s, and the lock is free")
    if stranded.at(suspect.key) is not None:
        return _finding(suspect, Came.KEPT, "it could not be sent: see the log")
    return _finding(suspect, Came.CHANGED, "somebody else promoted it just now")


def _finding(suspect: Stranded, came: Came, why: str) -> Finding:
    return Finding(Kind.PARKED, came, why, name=suspect.name, holder=f"{suspect.row.task}[{suspect.row.task_id}]")
