"""What an operator may do to locks and limiters, once: the admin, REST, the commands and the beat task only dress it.

Every function raises ``BackendUnavailable`` while the store is down and ``TaskLockError`` for a name
that cannot be, or a store that cannot list. Importing it touches no model.
"""

from django_tasklock.operations.audit import acts
from django_tasklock.operations.limits.permits import get_permits, list_permits, release_permit
from django_tasklock.operations.limits.rates import (
    change_limit,
    get_limit,
    list_limits,
    reset_limit,
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
from django_tasklock.operations.locks.release import ask_to_release, release_lock
from django_tasklock.operations.parked import discard_parked, requeue_parked
from django_tasklock.operations.sweep import Finding, SweepReport, sweep
from django_tasklock.operations.values import (
    Act,
    Actor,
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
    "LimitDetail",
    "LimitOutcome",
    "LimitPage",
    "LimitResult",
    "LimitState",
    "LimitView",
    "LockDetail",
    "LockPage",
    "LockState",
    "LockView",
    "Outcome",
    "PermitsPage",
    "PermitsView",
    "Result",
    "RowRef",
    "RowSide",
    "SweepReport",
    "acts",
    "ask_to_release",
    "change_limit",
    "count_locks",
    "discard_parked",
    "find_lock",
    "find_row",
    "get_limit",
    "get_lock",
    "get_permits",
    "list_limits",
    "list_locks",
    "list_permits",
    "release_lock",
    "release_permit",
    "requeue_parked",
    "reset_limit",
    "sweep",
]
