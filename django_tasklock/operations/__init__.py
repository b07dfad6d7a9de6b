"""What operators may do to locks, for a project's own code, such as a page of its own.

The admin, REST, the commands and the beat task call the same functions; those for limits, messages and the audit trail
are in the modules of this package, which may change.

Every function raises ``BackendUnavailable`` while the store is down, and ``TaskLockError`` for an invalid name or a
store that cannot list. Importing this package imports no model.
"""

from django_tasklock.backends.contract.lists import Query
from django_tasklock.operations.locks.detail import get_lock
from django_tasklock.operations.locks.listing import count_locks, list_locks, scan_locks
from django_tasklock.operations.locks.release import ask_release, release_lock
from django_tasklock.operations.locks.waiting import WaiterInfo, WaitersPage, list_waiters
from django_tasklock.operations.plain import to_plain
from django_tasklock.operations.sweep import Finding, SweepReport, sweep
from django_tasklock.operations.sweep.runs import SweepRun, last_sweep_age, overdue_sweep, sweep_runs
from django_tasklock.operations.trail import acts
from django_tasklock.operations.values import (
    Act,
    Actor,
    LockCounts,
    LockDetail,
    LockPage,
    LockState,
    LockView,
    Outcome,
    Result,
    RowRef,
    RowSide,
)

__all__ = [
    "Act",
    "Actor",
    "Finding",
    "LockCounts",
    "LockDetail",
    "LockPage",
    "LockState",
    "LockView",
    "Outcome",
    "Query",
    "Result",
    "RowRef",
    "RowSide",
    "SweepReport",
    "SweepRun",
    "WaiterInfo",
    "WaitersPage",
    "acts",
    "ask_release",
    "count_locks",
    "get_lock",
    "last_sweep_age",
    "list_locks",
    "list_waiters",
    "overdue_sweep",
    "release_lock",
    "scan_locks",
    "sweep",
    "sweep_runs",
    "to_plain",
]
