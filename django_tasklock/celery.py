"""What Celery adds: which task runs here, whether it will be run again, ``task.lock``."""

from __future__ import annotations

from typing import Any

from celery import current_task
from celery.app.task import Task
from celery.exceptions import Retry

from django_tasklock import holders, running

__all__ = ["install"]


def install() -> None:
    """Teach the core about Celery; called once by the app's ``ready()``."""
    holders.describe_task(task_here)
    running.retries(will_retry)
    if "lock" not in vars(Task):
        Task.lock = LockAttribute()


class LockAttribute:
    """``task.lock`` for tasks whose function is decorated: Celery keeps no attribute of the function itself."""

    def __get__(self, task: Any, kind: Any = None) -> Any:
        try:
            return task.run.lock
        except AttributeError:
            raise AttributeError(f"task {getattr(task, 'name', task)!r} has no lock: decorate its function with task_lock or model_lock") from None


def task_here() -> tuple[str, str] | None:
    """Name and id of the task that runs in this thread."""
    task = current_task
    if not task or not task.request.id:
        return None
    return task.name, task.request.id


def will_retry(error: BaseException) -> bool:
    """Whether Celery runs the task again after ``error``: a ``retry()``, or ``autoretry_for`` with tries left."""
    if isinstance(error, Retry):
        return True
    task: Any = current_task
    if not task or task.request.called_directly:
        return False
    matching = tuple(getattr(task, "autoretry_for", ()) or ())
    spared = tuple(getattr(task, "dont_autoretry_for", ()) or ())
    if not matching or not isinstance(error, matching) or (spared and isinstance(error, spared)):
        return False
    return task.max_retries is None or task.request.retries < task.max_retries
