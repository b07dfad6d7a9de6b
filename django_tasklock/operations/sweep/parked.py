"""Messages that are parked behind no lock: the wake-up that should have brought them back was lost."""

from __future__ import annotations

from collections.abc import Iterator

from django.core.exceptions import ImproperlyConfigured

from django_tasklock.celery.parking import stranded
from django_tasklock.celery.parking.stranded import Stranded
from django_tasklock.operations.sweep.report import Came, Finding, Kind, Notebook
from django_tasklock.operations.sweep.stream import second_look
from django_tasklock.operations.sweep.terms import SweepOptions


def sweep_parked(options: SweepOptions, notes: Notebook) -> None:
    """Look twice; then promote each, as a worker would, which any number may try."""
    try:
        for batch in second_look(_marks(options, notes), options.pause):
            for mark in batch:
                notes.add(_again(mark, options))
            notes.write(options.by)
    except ImproperlyConfigured as error:
        notes.leave_out(f"parked messages: {error}")


def _marks(options: SweepOptions, notes: Notebook) -> Iterator[Stranded]:
    for looked in stranded.look():
        if options.over:
            return
        notes.looked_at["parked"] += 1
        if looked is None or not looked.name.startswith(options.prefix):
            continue
        if options.age is None or looked.waited >= options.age:
            yield looked


def _again(mark: Stranded, options: SweepOptions) -> Finding:
    now = stranded.at(mark.key)
    if now is None or now.row.task_id != mark.row.task_id or now.row.changed_at != mark.row.changed_at:
        return _finding(mark, Came.CHANGED, "it was on its way at the second look, or its lock was held")
    if options.dry_run:
        return _finding(mark, Came.WOULD, f"it has waited {mark.waited / 1000:.0f} s, and the lock is free")
    if stranded.promote(mark.key):
        return _finding(mark, Came.SWEPT, f"it has waited {mark.waited / 1000:.0f} s, and the lock is free")
    if stranded.at(mark.key) is not None:
        return _finding(mark, Came.KEPT, "it could not be sent: see the log")
    return _finding(mark, Came.CHANGED, "somebody else promoted it just now")


def _finding(mark: Stranded, came: Came, why: str) -> Finding:
    return Finding(Kind.PARKED, came, why, name=mark.name, holder=f"{mark.row.task}[{mark.row.task_id}]")
