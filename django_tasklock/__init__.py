"""Distributed locks for Django and Celery whose guarded rows refuse the writes of stale workers.

The package can be imported while Django is still loading its apps: it imports neither models nor Celery. Each public
name is imported when it is first used, so that a process pays only for what it uses.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django_tasklock.db.connections import arelease_connections, release_connections, released_connections
    from django_tasklock.decorators.concurrency import concurrency_limited
    from django_tasklock.decorators.locks import model_lock, task_lock
    from django_tasklock.decorators.rates import rate_limited
    from django_tasklock.exceptions import (
        BackendUnavailable,
        GuardRejected,
        LockLost,
        RateLimitExceeded,
        ReleaseAsked,
        StaleClaim,
        TaskLockAcquireError,
        TaskLockError,
    )
    from django_tasklock.guards.claim import Claim, current_claim
    from django_tasklock.guards.guard import StateGuard
    from django_tasklock.locks.functions import (
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
    from django_tasklock.locks.lock import TaskLock, current_lock
    from django_tasklock.locks.semaphore import ConcurrencyLimiter, current_limiter
    from django_tasklock.rates.limiter import RateLimiter
    from django_tasklock.rates.reservation import current_reservation
    from django_tasklock.types import LimiterInfo, LockInfo, Released

__version__ = "0.2.0rc1"

__all__ = [  # noqa: RUF022  # first what most users need, with celery.OnceTask
    "TaskLock",
    "task_lock",
    "model_lock",
    "StateGuard",
    "current_claim",
    "RateLimiter",
    "ConcurrencyLimiter",
    # The errors
    "TaskLockError",
    "TaskLockAcquireError",
    "LockLost",
    "StaleClaim",
    "GuardRejected",
    "BackendUnavailable",
    "RateLimitExceeded",
    "ReleaseAsked",
    # Decorators of limits, what a body may ask, and values
    "rate_limited",
    "concurrency_limited",
    "current_lock",
    "current_limiter",
    "current_reservation",
    "Claim",
    "LockInfo",
    "LimiterInfo",
    "Released",
    "release_connections",
    "released_connections",
    "arelease_connections",
    # The plain functions
    "task_lock_context",
    "acquire_task_lock",
    "release_task_lock",
    "extend_task_lock",
    "is_task_locked",
    "get_lock_holder",
    "get_lock_ttl",
    "get_lock_info",
    "list_all_task_locks",
    "force_release_task_lock",
]

_NAMES = {
    "db.connections": "arelease_connections release_connections released_connections",
    "decorators.concurrency": "concurrency_limited",
    "decorators.locks": "model_lock task_lock",
    "decorators.rates": "rate_limited",
    "exceptions": (
        "BackendUnavailable GuardRejected LockLost RateLimitExceeded ReleaseAsked StaleClaim "
        "TaskLockAcquireError TaskLockError"
    ),
    "guards.claim": "Claim current_claim",
    "guards.guard": "StateGuard",
    "locks.functions": (
        "acquire_task_lock extend_task_lock force_release_task_lock get_lock_holder get_lock_info "
        "get_lock_ttl is_task_locked list_all_task_locks release_task_lock task_lock_context"
    ),
    "locks.lock": "TaskLock current_lock",
    "locks.semaphore": "ConcurrencyLimiter current_limiter",
    "rates.limiter": "RateLimiter",
    "rates.reservation": "current_reservation",
    "types": "LimiterInfo LockInfo Released",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
