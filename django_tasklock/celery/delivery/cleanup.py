"""Cleaning up after tasks whose own process cannot: it was killed, or the task was revoked before it began.

Celery's hooks for these run in the worker's main process, on a hard time limit *before* the child has stopped. So
nothing is released at once: a thread waits until the process that took the lock is dead, and removes the lock with the
token that was read before. Permits expire with their leases.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any
from weakref import WeakValueDictionary

from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError

from django_tasklock.backends import get_backend
from django_tasklock.celery import rates
from django_tasklock.celery.definition import bound_arguments, lock_of
from django_tasklock.celery.delivery.duplicates import free_dead
from django_tasklock.celery.message import header_of
from django_tasklock.celery.options import pop_overrides
from django_tasklock.celery.queue import line, rows
from django_tasklock.celery.queue.promoter import promote
from django_tasklock.celery.queue.rows import close_idle
from django_tasklock.celery.unique import release_unique
from django_tasklock.db.connections import release_connections
from django_tasklock.db.forks import no_fork
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.locks.holder import alive
from django_tasklock.names import each_of, of_tenant, own_name

logger = logging.getLogger("django_tasklock")

KILLED = (WorkerLostError, TimeLimitExceeded, Terminated)
KILL_TIMEOUT = 15.0  # seconds for a killed process to die; after that the lease frees the lock
POLL_INTERVAL = 0.1

_received: WeakValueDictionary[str, Any] = WeakValueDictionary()
"""The unfinished requests of this worker by task id, as Celery does not say with which message a task failed."""


def on_received(request: Any = None, **details: Any) -> None:
    """Store a request (``task_received``, in the main process)."""
    _received[request.id] = request


def on_failure(sender: Any = None, task_id: str = "", exception: Any = None, **details: Any) -> None:
    """Clean up after a task that was killed and is not redelivered (``task_failure``, in the main process)."""
    if isinstance(exception, KILLED) and not is_requeued(sender, exception):
        header = header_of(getattr(sender, "request", None))
        if not header and (request := _received.get(task_id)) is not None:
            header = header_of(request._context)
        _clean_up_later(sender, task_id, header, details.get("args") or (), details.get("kwargs") or {})


def is_requeued(task: Any, exception: Exception) -> bool:
    """Return whether Celery requeues a message although it reports a failure, by a hard time limit."""
    if not (isinstance(exception, TimeLimitExceeded) and task.acks_late):
        return False
    acks = getattr(task, "acks_on_timeout", None)  # the newer of the two options
    return not (task.acks_on_failure_or_timeout if acks is None else acks)


def on_revoked(sender: Any = None, request: Any = None, terminated: bool = False, **details: Any) -> None:
    """Clean up after a message that was revoked or has expired, or is being terminated (``task_revoked``)."""
    if request is not None:
        args, kwargs = getattr(request, "args", None) or (), getattr(request, "kwargs", None) or {}
        _clean_up_later(sender, request.id, header_of(request), args, kwargs, None if terminated else request)


def lock_name(task: Any, header: dict[str, Any], args: Any, kwargs: Any) -> str | None:
    """Return the name of a message's lock: from its header, or as the decorated function computes it."""
    if "key" in header:
        return str(header["key"])
    locked = lock_of(task)
    try:
        with of_tenant(header.get("tenant")):
            if hasattr(task, "once_options"):  # a ``OnceTask``, published by ``send_task``, which does not know it
                kwargs = dict(kwargs)
                key = pop_overrides(task, kwargs, header.get("once")).get("key")
                return task.lock_name(*args, **kwargs) if key is None else own_name(key)
            return None if locked is None else own_name(locked.template.name(bound_arguments(task, args), kwargs))
    except Exception:  # a call whose arguments do not fit was never run
        return None


def _clean_up_later(
    task: Any, task_id: str, header: dict[str, Any], args: Any, kwargs: Any, unused: Any = None
) -> None:
    """Release in a thread what a message held. ``unused``: its request, if it has not used its rate limit."""
    name = lock_name(task, header, args, kwargs)
    if name is not None or (unused is not None and rates.peek_reservation(unused) is not None):
        what = (task, task_id, name, header, unused)
        threading.Thread(target=_clean_up, args=what, name="tasklock-ending", daemon=True).start()


def _clean_up(task: Any, task_id: str, name: str | None, header: dict[str, Any], unused: Any) -> None:
    try:
        with no_fork():
            if unused is not None:
                rates.cancel_reservation(task, unused)
        # Otherwise its process is still alive, and releases everything when it ends.
        if name is not None and _free_when_dead(task, task_id, name):
            with no_fork():
                line.leave(name, task_id)
                rows.remove(task_id)
                release_unique(header, task_id)
                for one in each_of(name):
                    promote(one, task.app)
    except BackendUnavailable as error:
        logger.warning("lock %r of %s[%s] is left to its lease: %s", name, task.name, task_id, error)
    except Exception:
        logger.exception("lock %r of %s[%s] is left to its lease", name, task.name, task_id)
    finally:
        with no_fork():  # SQLite has a mutex of the process while it closes, and a child could open no database
            close_idle()
            release_connections()  # Django does not close the connections of this thread


def _free_when_dead(task: Any, task_id: str, name: str) -> bool:
    """Wait until the process with the lock of this message is dead, and free the lock. Return False if it lives on."""
    ends = time.monotonic() + KILL_TIMEOUT
    while time.monotonic() < ends:
        with no_fork():
            record = get_backend().get(each_of(name)[0])
            if record is None or (record.holder.task_id, record.holder.task) != (task_id, task.name):
                return True
            if alive(record.holder) is False:
                free_dead(record, name)
                return True
        time.sleep(POLL_INTERVAL)
    return False
