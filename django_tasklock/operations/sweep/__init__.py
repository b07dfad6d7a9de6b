"""The sweep: find what crashed holders left behind and repair it, on evidence, never on age alone.

Three finders compare the index of locks, the guarded rows, and whether the holders' processes run: ``locks`` finds
locks of dead processes and those without expiry, ``rows`` claimed rows without a live lock, ``messages`` what dead
workers had fetched. Everything is checked twice, with a pause in between: the first look records the token of each
suspect, and after the second one the sweep acts only on unchanged suspects, by the same conditional UPDATE and
compare-and-delete that every caller uses. So any number of sweeps may run at once, none holds anything that others wait
for, and one may be killed at any moment.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace

from django.core.exceptions import ImproperlyConfigured
from django.db import Error, InterfaceError, OperationalError, router
from django.db.models import Model

from django_tasklock import counts
from django_tasklock.backends import get_backend
from django_tasklock.backends.contract.stores import LockStore
from django_tasklock.conf import Duration, get_settings
from django_tasklock.db.transactions import durable
from django_tasklock.exceptions import BackendUnavailable, TaskLockError
from django_tasklock.names import present_tenant
from django_tasklock.operations.audit import delete_old_entries
from django_tasklock.operations.sweep.guards import Guards
from django_tasklock.operations.sweep.locks import LockSweep
from django_tasklock.operations.sweep.messages import sweep_messages
from django_tasklock.operations.sweep.options import SweepOptions
from django_tasklock.operations.sweep.report import Finding, FindingOutcome, Kind, SweepLog, SweepReport, Tally
from django_tasklock.operations.sweep.restoring import RowRestorer
from django_tasklock.operations.sweep.rows import RowSweep
from django_tasklock.operations.sweep.runs import record_run
from django_tasklock.operations.sweep.stream import sweep_twice
from django_tasklock.operations.sweep.unclaimed import UnclaimedSweep
from django_tasklock.operations.values import Actor

__all__ = ["PAUSE", "Finding", "FindingOutcome", "Kind", "SweepReport", "Tally", "sweep"]

logger = logging.getLogger("django_tasklock")

PAUSE = 2.0
"""Seconds between the two looks: longer than a body that began in an outage takes to acquire its lock afterwards."""
ONE_PROCESS_ONLY = "TASKLOCK['BACKEND'] keeps the locks of one process: those of others cannot be seen from here"


def sweep(
    *,
    dry_run: bool = False,
    older_than: Duration | None = None,
    prefix: str = "",
    models: Iterable[type[Model] | str] = (),
    requeue: bool = False,
    unclaimed: bool = False,
    by: Actor = Actor("sweep"),  # noqa: B008  # frozen
    pause: Duration = PAUSE,
    longest: Duration | None = None,
) -> SweepReport:
    """Sweep once. Classes, evidence and actions are in docs/operate.md.

    ``dry_run``: check twice, and change nothing. ``older_than``: only locks held for at least so long; rows have no age
    and are left out. ``prefix``: only locks whose names begin with it. ``models``: only rows of these guarded models
    (or labels), and locks that name one. ``requeue``: publish the task of every row that is restored. ``unclaimed``:
    also restore rows in a claimed state that nobody has claimed, which are only named otherwise. ``by``: the actor in
    the audit trail. ``pause``: seconds between the two looks. ``longest``: seconds after which the sweep stops at
    the next step, which may take some seconds more; what it did not reach is listed in ``left_out``, and the run does
    not count as a sweep of everything.

    Raises ``BackendUnavailable`` when the store or the database is down, ``TaskLockError`` for invalid arguments, and
    ``TransactionOpen`` inside ``atomic()``. Changes made before the exception stay.
    """
    options = SweepOptions.from_arguments(dry_run, older_than, prefix, models, requeue, by, pause, longest, unclaimed)
    log = SweepLog(dry_run, by)
    try:
        _sweep(get_backend(), options, log)
    except (OperationalError, InterfaceError) as error:  # the run cannot be recorded without the database
        raise BackendUnavailable(f"the database could not be asked: {error}") from error
    except BackendUnavailable as error:
        record_run(options, log.report(), f"the store could not be asked: {error}")
        raise
    except (TaskLockError, ImproperlyConfigured):
        raise
    except BaseException as error:
        record_run(options, log.report(), f"broken off: {type(error).__name__}")
        raise
    finally:
        log.write_audit_entries()
    incomplete = "its time was over, so not everything was checked" if options.timed_out else ""
    if incomplete:
        log.record_left_out(incomplete)
    report = log.report()
    report = replace(report, number=record_run(options, report, incomplete))
    if report.swept and not dry_run:
        logger.info("sweep: %s", ", ".join(f"{kind} {one.acted}" for kind, one in report.counts.items() if one.acted))
    if named := report.counts[Kind.UNCLAIMED].kept:
        logger.warning("sweep: %d %s: docs/operate.md", named, Kind.UNCLAIMED.label)
    return report


def _sweep(backend: LockStore, options: SweepOptions, log: SweepLog) -> None:
    from django_tasklock.celery.task_modules import import_task_modules

    for problem in import_task_modules():
        log.record_left_out(f"rows of guards that are not known here: {problem}")
    guards = Guards(options)
    for label in guards.unknown_models:
        log.record_left_out(f"rows of {label}: there is no such model")
    for model in guards.without_table:
        log.record_left_out(
            f"rows of {model._meta.label_lower}: tenant {present_tenant()!r} has no such table; sweep as each tenant"
        )
    for alias in {router.db_for_write(model) for model in guards.by_model}:
        with durable(alias, "sweep"):  # a restored row must be committed before its lock is deleted
            pass
    restorer = RowRestorer(options.requeue)
    listing_problem = _listing_problem(backend)
    if listing_problem:
        log.record_left_out(f"the index of locks: {listing_problem}")
    else:
        _forget_expired(backend, options)
        sweep_twice(LockSweep(backend, guards, restorer, options, log), log, options.pause)
    if options.timed_out:
        return
    if options.age is not None:
        log.record_left_out("claimed rows without a lock: rows have no age")
    elif not backend.across_processes:
        log.record_left_out(f"claimed rows without a lock: {ONE_PROCESS_ONLY}")
    else:
        rows = RowSweep(backend, not listing_problem, guards, restorer, options, log)
        sweep_twice(rows, log, options.pause)
        sweep_twice(UnclaimedSweep(backend, guards, rows, options, log), log, options.pause)
    if options.models:
        log.record_left_out("messages: they do not tell their model")
    elif not options.prefix:  # most of these messages have no lock
        sweep_messages(options, log)
    if options.is_complete and not options.dry_run:
        _delete_old_entries()


def _forget_expired(backend: LockStore, options: SweepOptions) -> None:
    """Drop the index entries of locks whose lease has ended. The locks were free before."""
    while not options.dry_run and not options.timed_out and (dropped := backend.prune(1000)):
        counts.count(counts.EXPIRED, "", number=dropped)


def _delete_old_entries() -> None:
    days = get_settings().AUDIT_DAYS
    try:
        removed = 0 if days is None else delete_old_entries(days)
    except (Error, ImproperlyConfigured) as error:  # the audit trail is optional here, as for all actions
        logger.warning("sweep: old entries of the audit trail could not be removed: %s", error)
        return
    if removed:
        logger.info("sweep: %d entries of the audit trail were older than %s days", removed, days)


def _listing_problem(backend: LockStore) -> str:
    """Return why the store cannot list its locks; empty if it can."""
    try:
        backend.counts()
    except BackendUnavailable:
        raise
    except TaskLockError as error:
        return str(error)
    return ""
