"""The current Celery task, whether Celery will run it again, and the attribute ``task.lock``."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from billiard import common as children
from celery._state import get_current_worker_task
from celery.canvas import _chain
from celery.exceptions import Ignore, Reject, Retry, WorkerShutdown, WorkerTerminate

from django_tasklock.celery.definition import is_bound, lock_of, row_of
from django_tasklock.celery.message import try_number
from django_tasklock.celery.state import Duplicate, Parked, state_of
from django_tasklock.exceptions import TaskLockError
from django_tasklock.guards.claim import current
from django_tasklock.host import Task

GREENLETS_END = (("greenlet", "GreenletExit"), ("gevent.timeout", "Timeout"), ("eventlet.timeout", "Timeout"))
"""By what the pools of greenlets end a body: the modules and names of classes that need not be installed."""


class LockAttribute:
    """The attribute ``task.lock`` of tasks with a decorated function: Celery copies no attributes of the function."""

    def __get__(self, task: Any, kind: Any = None) -> Any:
        if task is None:
            return self
        lock = lock_of(task)
        if lock is None:
            raise AttributeError(
                f"task {getattr(task, 'name', task)!r} has no lock: decorate its function with task_lock or model_lock"
            )
        return lock.of_bound() if is_bound(task) else lock


def current_task() -> Task | None:
    """Return the published task that runs in this thread, even inside tasks that it calls directly."""
    task: Any = get_current_worker_task()
    request: Any = None if task is None else task.request
    return None if request is None or not request.id else Task(task.name, request.id, try_number(request))


def record_replacement(on_replace: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``Task.on_replace`` to record that a message was sent, which Celery's ``Ignore`` does not say.

    In the body of a guarded task it raises ``TaskLockError``, before anything is sent, unless the message is for the
    same row, which it claims again and closes.
    """

    @wraps(on_replace)
    def wrapper(task: Any, sig: Any) -> Any:
        ensure_row_is_closed(task, sig)
        try:
            return on_replace(task, sig)
        except Ignore:
            state_of(task.request).replaced = True
            raise

    return wrapper


def ensure_row_is_closed(task: Any, sig: Any) -> None:
    """Raise ``TaskLockError`` if the body that runs has claimed a row, and ``sig``, which replaces it, will not."""
    if (claim := current.get()) is None:
        return
    row, first = row_of(task, task.request.args, task.request.kwargs), sig
    if row is None and task.request.is_eager:  # the claim may be that of the task's caller; and all of it runs here
        return
    while isinstance(first, _chain) and first.tasks:
        first = first.tasks[0]
    if first.get("task") == task.name and row_of(task, first.get("args"), first.get("kwargs")) == row:
        return
    raise TaskLockError(
        f"task {task.name} has claimed {claim.name}, which nothing would close if {first.get('task')} replaces it: only"
        " the task itself, for the same row, may do that. Publish the other work from the body and let it return: one"
        " guard with done='encoding', and a second task, which ends it, with claim_from=['encoding', 'closing'], see"
        " docs/guard.md",
        name=claim.name,
    )


def record_retry(retry: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``Task.retry`` to record that the next try was sent, where it does not raise, by ``throw=False``."""

    @wraps(retry)
    def wrapper(task: Any, *args: Any, **kwargs: Any) -> Any:
        result = retry(task, *args, **kwargs)
        state_of(task.request).retried = result
        return result

    return wrapper


def ended_by_worker(error: BaseException) -> bool:
    """Return whether the worker ends the body with ``error``, which is no ``Exception``.

    It shuts down, or the task is revoked or takes too long. Otherwise the body has raised it.
    """
    if children._should_have_exited[0]:  # type: ignore[attr-defined]  # of a signal, in a prefork child
        return True
    names = ((one.__module__, one.__name__) for one in type(error).__mro__)
    return isinstance(error, WorkerShutdown | WorkerTerminate) or any(one in GREENLETS_END for one in names)


def is_continued(error: BaseException) -> bool:
    """Return whether ``error`` says by itself that the work continues: by a retry, a requeue or a replacement."""
    if isinstance(error, Retry | Parked | Duplicate):
        return True
    task: Any = get_current_worker_task()
    if task is not None and isinstance(error, Ignore):
        return state_of(task.request).replaced
    # Requeued is what was not acknowledged early.
    return task is not None and isinstance(error, Reject) and bool(getattr(error, "requeue", False) and task.acks_late)


def will_retry(error: BaseException) -> bool:
    """Return whether the work continues after ``error`` has ended the body of a task, also by ``autoretry_for``."""
    task: Any = get_current_worker_task()
    if is_continued(error):
        return True
    if task is None or isinstance(error, Ignore):
        return False
    wanted, spared = exceptions_of(task, "autoretry_for"), exceptions_of(task, "dont_autoretry_for")
    if isinstance(error, wanted) and not isinstance(error, spared):
        limit = retry_limit(task)
        return limit is None or task.request.retries < limit
    return False


def exceptions_of(task: Any, option: str) -> tuple[type[BaseException], ...]:
    """Return the exception classes in this option of the task."""
    return tuple(getattr(task, option, None) or ())


def retry_limit(task: Any) -> int | None:
    """Return the number of retries that ``autoretry_for`` makes; ``None``: unlimited.

    Two options take precedence over ``max_retries``.
    """
    limit = (getattr(task, "retry_kwargs", None) or {}).get("max_retries")
    limit = getattr(task, "override_max_retries", limit)
    return task.max_retries if limit is None else limit  # type: ignore[no-any-return]
