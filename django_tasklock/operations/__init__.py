"""The operators' actions on locks and limiters; the admin, REST, the commands and the beat task are interfaces to them.

Every function raises ``BackendUnavailable`` while the store is down, and ``TaskLockError`` for an invalid name or a
store that cannot list. Importing this package imports no model.
"""

from django_tasklock.operations.limits.permits import get_permits, list_permits, release_permit
from django_tasklock.operations.limits.rates import (
    change_limit,
    get_limit,
    list_limits,
    pause_limit,
    reset_limit,
    resume_limit,
)
from django_tasklock.operations.limits.values import (
    LimitDetail,
    LimitOutcome,
    LimitPage,
    LimitResult,
    LimitState,
    LimitView,
    PermitsPage,
    PermitsView,
)
from django_tasklock.operations.locks.detail import find_lock, find_row, get_lock
from django_tasklock.operations.locks.listing import count_locks, list_locks
from django_tasklock.operations.locks.release import ask_release, release_lock
from django_tasklock.operations.locks.waiting import WaiterInfo, WaitersPage, list_waiters
from django_tasklock.operations.parked.acts import (
    ParkedOutcome,
    ParkedResult,
    discard_parked,
    publish_parked,
    requeue_parked,
)
from django_tasklock.operations.parked.listing import ParkedPage, ParkedQuery, ParkedView, find_parked, list_parked
from django_tasklock.operations.plain import to_plain
from django_tasklock.operations.sweep import Finding, SweepReport, sweep
from django_tasklock.operations.sweep.runs import SweepRun, find_sweep_run, last_sweep_age, sweep_runs
from django_tasklock.operations.trail import ActPage, ActQuery, acts, each_act, list_acts
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
    "ActPage",
    "ActQuery",
    "Actor",
    "Finding",
    "LimitDetail",
    "LimitOutcome",
    "LimitPage",
    "LimitResult",
    "LimitState",
    "LimitView",
    "LockCounts",
    "LockDetail",
    "LockPage",
    "LockState",
    "LockView",
    "Outcome",
    "ParkedOutcome",
    "ParkedPage",
    "ParkedQuery",
    "ParkedResult",
    "ParkedView",
    "PermitsPage",
    "PermitsView",
    "Result",
    "RowRef",
    "RowSide",
    "SweepReport",
    "SweepRun",
    "WaiterInfo",
    "WaitersPage",
    "acts",
    "ask_release",
    "change_limit",
    "count_locks",
    "discard_parked",
    "each_act",
    "find_lock",
    "find_parked",
    "find_row",
    "find_sweep_run",
    "get_limit",
    "get_lock",
    "get_permits",
    "last_sweep_age",
    "list_acts",
    "list_limits",
    "list_locks",
    "list_parked",
    "list_permits",
    "list_waiters",
    "pause_limit",
    "publish_parked",
    "release_lock",
    "release_permit",
    "requeue_parked",
    "reset_limit",
    "resume_limit",
    "sweep",
    "sweep_runs",
    "to_plain",
]
