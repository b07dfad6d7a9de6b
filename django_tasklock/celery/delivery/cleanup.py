"""Cleaning up after tasks whose own process cannot: it was killed, or the task was revoked before it began.

Celery's hooks for these run in the worker's main process, on a hard time limit *before* the child has stopped. So
nothing is released at once: a thread waits until the process that took the lock is dead, closes the rows that it has
left (``left``), and removes the lock with the token that was read before. Permits expire with their leases.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError

from django_tasklock.backends import get_backend
from django_tasklock.backends.contract import lists
from django_tasklock.celery import rates
from django_tasklock.celery.definition import bound_arguments, lock_of, row_of
from django_tasklock.celery.delivery.left import close_rows
from django_tasklock.celery.message import header_of, left_mark
from django_tasklock.celery.options import pop_overrides
from django_tasklock.celery.queue import line, rows
from django_tasklock.celery.queue.promoter import promote
from django_tasklock.celery.queue.rows import close_idle
from django_tasklock.celery.unique import release_unique
from django_tasklock.db.connections import release_connections
from django_tasklock.db.forks import no_fork
from django_tasklock.decorators.rows import GuardedRow
from django_tasklock.exceptions import BackendUnavailable, TaskLockError
from django_tasklock.guards.guard import registered
from django_tasklock.locks.dead import free_dead
from django_tasklock.locks.holder import alive, runs
from django_tasklock.names import each_of, of_tenant, own_name
from django_tasklock.types import Record

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
        request = _received.get(task_id)
        header = header_of(getattr(sender, "request", None))
        if not header and request is not None:
            header = header_of(request._context)
        args, kwargs = details.get("args") or (), details.get("kwargs") or {}
        _clean_up_later(Ended(sender, task_id, header, args, kwargs, request, begun=True))


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
        _clean_up_later(Ended(sender, request.id, header_of(request), args, kwargs, request, begun=terminated))


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


class Ended(NamedTuple):
    """A message that has ended for good, which its own process could not see to."""

    task: Any
    id: str
    header: dict[str, Any]
    args: Any
    kwargs: Any
    request: Any
    """The one of the main process, if it is known."""
    begun: bool
    """Whether a process of the pool had it; otherwise it has not used its rate limit."""

    @property
    def name(self) -> str | None:
        """The name of its lock."""
        return lock_name(self.task, self.header, self.args, self.kwargs)

    @property
    def row(self) -> GuardedRow | None:
        """The row that its task works on."""
        try:
            return row_of(self.task, self.args, self.kwargs)
        except Exception:  # a call whose arguments do not fit was never run
            return None

    @property
    def is_continuation(self) -> bool:
        """Whether an earlier try had begun the work: it is a retry, or the next page of a task that replaced itself."""
        retries = getattr(getattr(self.request, "_context", self.request), "retries", 0)
        return bool(retries or self.header.get("page"))

    @property
    def pid(self) -> int:
        """The process of the pool that had it; 0: none that can be killed."""
        pid = getattr(self.request, "worker_pid", None) if self.begun else None
        return 0 if pid is None or pid == os.getpid() else int(pid)

    def is_of(self, record: Record | None) -> bool:
        """Return whether the holder of this lock is a delivery of the message."""
        return record is not None and (record.holder.task_id, record.holder.task) == (self.id, self.task.name)

    def __str__(self) -> str:
        return f"{self.task.name}[{self.id}]"


def _clean_up_later(ended: Ended) -> None:
    """Release in a thread what a message held, and close its rows."""
    unused = not ended.begun and rates.peek_reservation(ended.request) is not None
    if unused or ended.name is not None or (ended.begun and registered()):
        threading.Thread(target=_clean_up, args=(ended,), name="tasklock-ending", daemon=True).start()


def _clean_up(ended: Ended) -> None:
    name = ended.name
    try:
        with no_fork():
            if not ended.begun:
                rates.cancel_reservation(ended.task, ended.request)
        record, is_over = _await_end(ended, name)
        if not is_over:  # its process is still alive, and releases everything when it ends
            return
        tokens = {left_mark(ended.task.name, ended.id), *({record.token} if record else ()), *_tokens_of_helpers(ended)}
        close_rows(
            str(ended),
            ended.row,
            tokens,
            had_lock=record is not None,
            given_back=ended.is_continuation,
            helpers=ended.begun,
        )
        if name is not None:
            with no_fork():
                if record is not None:
                    free_dead(get_backend(), record, name)
                line.leave(name, ended.id)
                rows.remove(ended.id)
                release_unique(ended.header, ended.id)
                for one in each_of(name):
                    promote(one, ended.task.app)
    except BackendUnavailable as error:
        logger.warning("lock %r of %s is left to its lease: %s", name, ended, error)
    except Exception:
        logger.exception("lock %r of %s is left to its lease", name, ended)
    finally:
        with no_fork():  # SQLite has a mutex of the process while it closes, and a child could open no database
            close_idle()
            release_connections()  # Django does not close the connections of this thread


def _await_end(ended: Ended, name: str | None) -> tuple[Record | None, bool]:
    """Wait for the end of the message's run. Return the lock that its process has left, and whether it has ended."""
    ends, seen = time.monotonic() + KILL_TIMEOUT, None
    while True:
        is_late = time.monotonic() >= ends
        with no_fork():
            record = None if name is None else get_backend().get(each_of(name)[0])
            if record is None or not ended.is_of(record):
                if is_late or not (ended.pid and runs(ended.pid)):  # it may live on, and run other messages
                    return seen, True  # somebody else may have freed it
            elif alive((seen := record).holder) is False:
                return record, True
        if is_late:
            return None, False
        time.sleep(POLL_INTERVAL)


def _tokens_of_helpers(ended: Ended) -> Iterator[str]:
    """Yield the tokens of the locks that the message's body held besides its own, whose process is dead."""
    if not ended.begun:
        return
    with no_fork():
        try:
            for page in lists.each(get_backend()):
                yield from (one.token for one in page if ended.is_of(one) and alive(one.holder) is False)
        except BackendUnavailable:
            raise
        except TaskLockError:  # this store cannot list its locks
            return
