"""Cleaning up after tasks whose own process cannot: it was killed, or the task was revoked before it began.

Celery's hooks for these run in the worker's main process, on a hard time limit *before* the child has stopped. So
nothing is released at once: a thread waits until the process that took the lock is dead, and removes the lock with the
token that was read before; permits likewise.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError

from django_tasklock.backends import get_backend
from django_tasklock.celery import rates
from django_tasklock.celery.definition import bound_arguments, lock_of
from django_tasklock.celery.delivery.permits import free_permits, limiter_names
from django_tasklock.celery.message import header_of
from django_tasklock.celery.parking import store as parking
from django_tasklock.celery.parking.promotion import promote
from django_tasklock.celery.parking.rows import close_idle
from django_tasklock.celery.unique import release_unique
from django_tasklock.db.connections import release_connections
from django_tasklock.db.forks import no_fork
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.locks.events import count_forced
from django_tasklock.locks.holder import alive
from django_tasklock.names import NameTemplate, of_tenant, own_name

logger = logging.getLogger("django_tasklock")

KILLED = (WorkerLostError, TimeLimitExceeded, Terminated)
KILL_TIMEOUT = 15.0  # seconds for a killed process to die; after that the lease frees the lock
POLL_INTERVAL = 0.1

_received: WeakValueDictionary[str, Any] = WeakValueDictionary()
"""The unfinished requests of this worker by task id, as Celery 5.4 does not say with which message a task failed."""


def on_received(request: Any = None, **details: Any) -> None:
    """Store a request (``task_received``, in the main process)."""
    _received[request.id] = request


def on_failure(sender: Any = None, task_id: str = "", exception: Any = None, **details: Any) -> None:
    """Clean up after a task that was killed and is not redelivered (``task_failure``, in the main process)."""
    if isinstance(exception, KILLED) and not is_requeued(sender, exception):
        args, kwargs = details.get("args") or (), details.get("kwargs") or {}
        header = header_of(getattr(sender, "request", None))
        if not header and (request := _received.get(task_id)) is not None:
            header = header_of(request._context)
        name, permits = lock_name(sender, header, args, kwargs), limiter_names(sender, args, kwargs)
        _EndedDelivery(sender, task_id, name, permits, header).clean_up_later()


def is_requeued(task: Any, exception: Exception) -> bool:
    """Return whether Celery requeues a message although it reports a failure, by a hard time limit."""
    if not (isinstance(exception, TimeLimitExceeded) and task.acks_late):
        return False
    acks = getattr(task, "acks_on_timeout", None)  # the newer of the two options
    return not (task.acks_on_failure_or_timeout if acks is None else acks)


def on_revoked(sender: Any = None, request: Any = None, terminated: bool = False, **details: Any) -> None:
    """Clean up after a message that was revoked or has expired, or is being terminated (``task_revoked``)."""
    if request is None:
        return
    header = header_of(request)
    if not terminated and rates.peek_reservation(request) is not None:
        threading.Thread(target=_cancel_reservation, args=(sender, request), name="tasklock-returns").start()
    args, kwargs = getattr(request, "args", None) or (), getattr(request, "kwargs", None) or {}
    permits = limiter_names(sender, args, kwargs) if terminated else set()
    name = lock_name(sender, header, args, kwargs)
    _EndedDelivery(sender, request.id, name, permits, header).clean_up_later()


def _cancel_reservation(task: Any, request: Any) -> None:
    try:
        with no_fork():
            rates.cancel_reservation(task, request)
    finally:
        release_connections()  # Django does not close the connections of this thread


def lock_name(task: Any, header: dict[str, Any], args: Any, kwargs: Any) -> str | None:
    """Return the name of a message's lock: from its header, or as the decorated function computes it."""
    if "key" in header:
        return str(header["key"])
    locked = lock_of(task)
    if locked is None or not isinstance(locked.template, NameTemplate):
        return None
    try:
        with of_tenant(header.get("tenant")):
            return own_name(locked.template.name(bound_arguments(task, args), kwargs))
    except Exception:  # a call whose arguments do not fit was never run
        return None


class _EndedDelivery(NamedTuple):
    """A delivery whose own process cannot clean up, and what it may have held."""

    task: Any
    task_id: str
    name: str | None
    """The name of its lock."""
    permits: set[str]
    """The limiters of which it may have had permits."""
    header: dict[str, Any]

    def clean_up_later(self) -> None:
        """Release what it held, in a thread."""
        if self.name is not None or self.permits:
            threading.Thread(target=self._clean_up, name="tasklock-ending", daemon=True).start()

    def _clean_up(self) -> None:
        description = f"limiter {', '.join(sorted(self.permits))!r}" if self.name is None else f"lock {self.name!r}"
        try:
            # Otherwise its process is still alive, and releases everything when it ends.
            if self._free_when_dead() and self.name is not None:
                with no_fork():
                    self._leave_line(self.name)
        except BackendUnavailable as error:
            logger.warning("%s of %s[%s] is left to its lease: %s", description, self.task.name, self.task_id, error)
        except Exception:
            logger.exception("%s of %s[%s] is left to its lease", description, self.task.name, self.task_id)
        finally:
            release_connections()  # Django does not close the connections of this thread

    def _free_when_dead(self) -> bool:
        """Wait until its process is dead, and free its lock and permits. Return False if it is still alive."""
        ends = time.monotonic() + KILL_TIMEOUT
        while time.monotonic() < ends:
            with no_fork():
                if self._free_lock() and free_permits(self.task, self.task_id, self.permits):
                    return True
            time.sleep(POLL_INTERVAL)
        return False

    def _free_lock(self) -> bool:
        """Free its lock, if it has one. Return False if its process is still alive."""
        record = None if self.name is None else get_backend().get(self.name)
        if record is None or record.holder.task_id != self.task_id or record.holder.task != self.task.name:
            return True
        if alive(record.holder) is not False:
            return False
        if (removed := get_backend().remove(record.name, record.token)) is not None:
            count_forced(removed)
            logger.warning("lock %r is free: the process of %s[%s] died", self.name, self.task.name, self.task_id)
        return True

    def _leave_line(self, name: str) -> None:
        """Remove it from the line of its lock, and promote the next message."""
        try:
            if "ticket" in self.header:
                get_backend().leave_order(name, self.task_id)
            parking.remove(self.task_id)
            release_unique(self.header, self.task_id)
            promote(name, self.task.app)
        finally:
            close_idle()
