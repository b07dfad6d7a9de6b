"""Messages parked behind a free lock, whose wake-up was lost."""

from __future__ import annotations

from collections.abc import Iterator

from django.core.exceptions import ImproperlyConfigured

from django_tasklock.celery.parking import stranded
from django_tasklock.celery.parking.stranded import Stranded
from django_tasklock.operations.sweep.options import SweepOptions
from django_tasklock.operations.sweep.report import Finding, FindingOutcome, Kind, SweepLog
from django_tasklock.operations.sweep.stream import delayed_batches


def sweep_parked(options: SweepOptions, log: SweepLog) -> None:
    """Check twice, then promote each message as a worker would; concurrent attempts are harmless."""
    try:
        for batch in delayed_batches(_find_suspects(options, log), options.pause):
            for suspect in batch:
                with log.audit_interruption(suspect.name, Kind.PARKED, f"{suspect.row.task}[{suspect.row.task_id}]"):
                    log.add(_confirm_and_promote(suspect, options))
            log.write_audit_entries(options.by)
    except ImproperlyConfigured as error:
        log.record_left_out(f"parked messages: {error}")


def _find_suspects(options: SweepOptions, log: SweepLog) -> Iterator[Stranded]:
    for suspect in stranded.look():
        if options.timed_out:
            return
        log.looked_at["parked"] += 1
        if suspect is None or not suspect.name.startswith(options.prefix):
            continue
        if options.age is None or suspect.waited >= options.age:
            yield suspect


def _confirm_and_promote(suspect: Stranded, options: SweepOptions) -> Finding:
    current = stranded.at(suspect.key)
    if (
        current is None
        or current.row.task_id != suspect.row.task_id
        or current.row.changed_at != suspect.row.changed_at
    ):
        return _make_finding(
            suspect, FindingOutcome.CHANGED, "it was on its way at the second look, or its lock was held"
        )
    if options.dry_run:
        return _make_finding(
            suspect, FindingOutcome.WOULD, f"it has waited {suspect.waited / 1000:.0f} s, and the lock is free"
        )
    if stranded.promote(suspect.key):
        return _make_finding(
            suspect, FindingOutcome.SWEPT, f"it has waited {suspect.waited / 1000:.0f} s, and the lock is free"
        )
    if stranded.at(suspect.key) is not None:
        return _make_finding(suspect, FindingOutcome.KEPT, "it could not be sent: see the log")
    return _make_finding(suspect, FindingOutcome.CHANGED, "it was promoted by another process just now")


def _make_finding(suspect: Stranded, came: FindingOutcome, why: str) -> Finding:
    return Finding(Kind.PARKED, came, why, name=suspect.name, holder=f"{suspect.row.task}[{suspect.row.task_id}]")
