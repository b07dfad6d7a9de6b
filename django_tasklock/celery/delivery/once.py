"""Calls of a ``OnceTask``: by a worker, directly and eagerly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, cast

from celery._state import get_current_task
from celery.exceptions import Ignore, Reject

from django_tasklock.celery.definition import body_of
from django_tasklock.celery.delivery.nested import is_map, map_options
from django_tasklock.celery.delivery.retry_lock import LockOverRetry
from django_tasklock.celery.delivery.run import TaskCall
from django_tasklock.celery.message import Message, token_of
from django_tasklock.celery.options import OnceOptions
from django_tasklock.counts import clean_kind
from django_tasklock.decorators.call import Call, CallStrategy, Skipped, action_when_busy, skip_or_raise
from django_tasklock.decorators.options import CallOptions
from django_tasklock.decorators.rows import GuardedRow
from django_tasklock.exceptions import TaskLockAcquireError
from django_tasklock.locks import events
from django_tasklock.locks.lock import Acquirable, TaskLock
from django_tasklock.locks.ownership import current_owner
from django_tasklock.locks.transfer import supersede
from django_tasklock.names import parameters_of

Invocation = Literal["message", "eager", "call"]
"""How a task was called: from a message, by ``apply()``, or like a function."""


class DirectCall(CallStrategy):
    """A direct call: there is no message to put aside, and the call must not wait for its own thread.

    ``on_busy``: the function to call when the lock is busy.
    """

    def __init__(self, options: CallOptions, on_busy: Callable[[CallOptions], Skipped] = skip_or_raise) -> None:
        super().__init__(options)
        self.on_busy = on_busy
        rejects = on_busy is reject_or_raise and options.on_conflict == "reject"
        options.lock.on_busy = "reject" if rejects else action_when_busy(options)

    def take(self) -> Skipped | None:
        """Acquire the lock, or call ``on_busy``."""
        lock = self.options.lock
        return None if not held_here(lock) and lock.acquire() else self.on_busy(self.options)

    async def atake(self) -> Skipped | None:
        """Do what ``take`` does, for coroutines."""
        lock = self.options.lock
        return None if not held_here(lock) and await lock.aacquire() else self.on_busy(self.options)


class RejectedHere(Reject, Ignore):
    """The ``Reject`` of ``apply()``, with the state ``REJECTED``; ``autoretry_for=(Exception,)`` does not retry it."""


def held_here(lock: Acquirable) -> bool:
    """Return whether this thread holds ``lock`` itself; if so, record that as its conflict."""
    lease = current_owner().get(lock.name)
    if lease is None or lease.released or lease.lost:
        return False
    text = f"lock {lock.name!r} is held by this very thread, which called its task again"
    lock.record_conflict(TaskLockAcquireError(text, name=lock.name))
    return True


def reject_or_raise(options: CallOptions) -> Skipped:
    """Reject an eager call, or do the same as a direct call."""
    if options.on_conflict == "reject":
        error = options.lock.conflict_error()
        events.conflict(error, "reject")
        raise RejectedHere(str(error), requeue=False)
    return skip_or_raise(options)


def once_call(
    task: Any,
    name: str,
    chosen: OnceOptions,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    invocation: Invocation,
    message: Message | None,
) -> Call:
    """Return a call of a task with the ``chosen`` options. ``message``: the message of a worker's call."""
    options = chosen.lock.call(name, row_of(task, args, kwargs))
    options.lock.kind = clean_kind(task.name)
    if message is not None:
        lock = cast(TaskLock, options.lock)
        if handle := message.header.get("kept"):
            supersede(lock, token_of(handle))
        kept = LockOverRetry(lock, message.request) if chosen.retry_keeps_lock else None
        return Call(options, TaskCall(options, message, kept, callers_park=True))
    if invocation == "eager":
        return Call(options, DirectCall(options, reject_or_raise))
    if is_map(get_current_task()):
        options = map_options(options)
    return Call(options, DirectCall(options))


def row_of(task: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> GuardedRow | None:
    """Return the row that a call works on, if its task has a guard."""
    if task.guarded is None:
        return None
    row: GuardedRow = task.guarded.of(parameters_of(body_of(task)).bind(args, kwargs))
    return row
