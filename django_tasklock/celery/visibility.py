"""Tasks that may be redelivered while they run, and tasks that are not redelivered when they die: for system checks."""

from __future__ import annotations

import math
from typing import Any

from celery.app import app_or_default

from django_tasklock.celery.broker import message_lease, visibility_timeout
from django_tasklock.celery.definition import lock_of
from django_tasklock.celery.task import OnceTask
from django_tasklock.celery.task_modules import import_task_modules
from django_tasklock.conf import DEFAULT, UNTIL_RELEASED, spans
from django_tasklock.guards.guard import registered


def reaching_visibility_timeout() -> tuple[list[str], float]:
    """Return the late-acknowledged tasks whose lock timeout reaches the visibility timeout, and that, in seconds.

    A task with ``timeout=None`` is not listed: its lock is held as long as it runs, so a redelivered message finds it.
    """
    import_task_modules()
    app = app_or_default()
    # Messages whose lease is renewed are not redelivered.
    seconds = visibility_timeout(app) if message_lease(app) is None else math.inf
    found = [task.name for task in app.tasks.values() if task.acks_late and seconds <= _lock_timeout(task)]
    return sorted(found), seconds


def acknowledged_early() -> list[str]:
    """Return the guarded tasks and ``OnceTask``s that are not started again when their process is killed."""
    import_task_modules()
    guarded = {id(lock) for _, _, lock, *_ in registered()}
    return sorted(
        task.name
        for task in app_or_default().tasks.values()
        if (isinstance(task, OnceTask) or id(lock_of(task)) in guarded)
        and not (task.acks_late and task.reject_on_worker_lost)
    )


def _lock_timeout(task: Any) -> float:
    """Return the lock timeout of a task in seconds; 0 if it has no lock or no timeout."""
    locked = task if isinstance(task, OnceTask) else lock_of(task)
    if locked is None:
        return 0
    timeout_ms, _ = spans(locked.timeout, getattr(locked, "lease", DEFAULT), task.name)
    return 0 if timeout_ms == UNTIL_RELEASED else timeout_ms / 1000
