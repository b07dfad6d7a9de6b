"""What an operator may do to locks, once: the admin, REST, the commands and the beat task only dress it.

Every function raises ``BackendUnavailable`` while the store is down and ``TaskLockError`` for a name
that cannot be, or a store that cannot list. Importing it touches no model.
"""

from django_tasklock.operations.audit import acts
from django_tasklock.operations.detail import get_lock
from django_tasklock.operations.listing import count_locks, list_locks
from django_tasklock.operations.release import ask_to_release, release_lock
from django_tasklock.operations.sweep import Finding, SweepReport, sweep
from django_tasklock.operations.views import (
    Act,
    Actor,
    LockDetail,
    LockPage,
    LockState,
    LockView,
    Outcome,
    Refused,
    Result,
    RowRef,
    RowSide,
)

__all__ = [
    "Act",
    "Actor",
    "Finding",
    "LockDetail",
    "LockPage",
    "LockState",
    "LockView",
    "Outcome",
    "Refused",
    "Result",
    "RowRef",
    "RowSide",
    "SweepReport",
    "acts",
    "ask_to_release",
    "count_locks",
    "get_lock",
    "list_locks",
    "release_lock",
    "sweep",
]
