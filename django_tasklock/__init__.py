"""Distributed task locks for Django and Celery, with the guarded row as the final judge.

Importing this package touches neither models nor Celery, so it may be imported while
Django is still loading its apps.
"""

from __future__ import annotations

from django_tasklock.claims import Claim
from django_tasklock.decorators import model_lock, task_lock
from django_tasklock.exceptions import (
    BackendUnavailable,
    GuardRejected,
    LockLost,
    ReleaseAsked,
    StaleClaim,
    TaskLockAcquireError,
    TaskLockError,
)
from django_tasklock.functions import (
    acquire_task_lock,
    extend_task_lock,
    force_release_task_lock,
    get_lock_holder,
    get_lock_info,
    get_lock_ttl,
    is_task_locked,
    list_all_task_locks,
    release_task_lock,
    task_lock_context,
)
from django_tasklock.guards import StateGuard, current_claim
from django_tasklock.locks import TaskLock, current_lock
from django_tasklock.types import LockInfo, Released

__version__ = "0.1.0"

__all__ = [
    "BackendUnavailable",
    "Claim",
    "GuardRejected",
    "LockInfo",
    "LockLost",
    "ReleaseAsked",
    "Released",
    "StaleClaim",
    "StateGuard",
    "TaskLock",
    "TaskLockAcquireError",
    "TaskLockError",
    "acquire_task_lock",
    "current_claim",
    "current_lock",
    "extend_task_lock",
    "force_release_task_lock",
    "get_lock_holder",
    "get_lock_info",
    "get_lock_ttl",
    "is_task_locked",
    "list_all_task_locks",
    "model_lock",
    "release_task_lock",
    "task_lock",
    "task_lock_context",
]
