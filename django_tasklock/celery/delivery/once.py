"""Calls of a ``OnceTask``: by a worker, directly and eagerly."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Literal, cast

from celery._state import get_current_task
from celery.exceptions import Ignore, Reject, Retry
from django.apps import apps

from django_tasklock.backends.contract.metrics import TIMED_OUT, clean_kind
from django_tasklock.celery.delivery.history import History
from django_tasklock.celery.delivery.nested import in_map, is_map
from django_tasklock.celery.delivery.run import TaskCall
from django_tasklock.celery.message import Message, token_of
from django_tasklock.celery.state import state_of
from django_tasklock.celery.unique import seconds_until
from django_tasklock.decorators.call import Call, CallKind, Skipped, conflict_of, skip_or_raise, word_when_busy
from django_tasklock.decorators.options import CallOptions, GuardedRow, LockOptions
from django_tasklock.exceptions import TaskLockAcquireError
from django_tasklock.locks import events
from django_tasklock.locks.lock import Acquirable, TaskLock
from django_tasklock.locks.takes import leases_here
from django_tasklock.locks.transfer import keep_for, supersede
from django_tasklock.types import monotonic

Way = Literal["message", "eager", "call"]
"""The way a task was called: sent to a worker, ``apply()``, or like a function."""

LOOK = 5.0  # seconds between two looks of who waits for a lock that may be kept while it waits
MARGIN = 60.0  # seconds that a kept lock outlives the countdown: the message may wait in its queue


class LockOverRetry:
    """The lock of a task with ``retry_keeps_lock``: the message that ``retry()`` sends brings a handle of it."""

    def __init__(self, lock: TaskLock, request: Any) -> None:
        self.lock = lock
        self.request = request
        self._handle = ""

    def wait(self, history: History) -> bool:
        """Wait for the lock, unless it is kept: the message that it is kept for needs a slot, this one's perhaps."""
        ends = monotonic() + self.lock.terms.patience
        while True:
            met = self.lock.met
            if met is not None and met.holder.kept:
                history.put_off()
            left = ends - monotonic()
            if left <= 0:
                return False
            self.lock.on_timeout = "" if left > LOOK else TIMED_OUT
            if self.lock.acquire(blocking_timeout=min(left, LOOK)):
                return True

    def offer(self) -> None:
        """Put lock and handle where ``retry()`` finds them; the next try may come before this one has left."""
        self._handle = os.urandom(16).hex()
        state_of(self.request).kept_lock = (self.lock, self._handle)

    def keep(self, error: BaseException | None) -> bool:
        """Keep the lock until after the countdown if the run ended with ``retry()``. Return whether it did."""
        if not isinstance(error, Retry) or state_of(self.request).kept_lock is None:
            return False
        keep_for(self.lock, max(0.0, seconds_until(error.when) or 0.0) + MARGIN, token_of(self._handle))
        return True


class DirectCall(CallKind):
    """A direct call: there is no message to put aside, and nobody else may be waited for by oneself.

    ``on_busy``: what is done when the lock is busy.
    """

    def __init__(self, options: CallOptions, on_busy: Callable[[CallOptions], Skipped] = skip_or_raise) -> None:
        super().__init__(options)
        self.on_busy = on_busy

    def take(self) -> Skipped | None:
        """Take the lock, or do what is done when it is busy."""
        lock = self.options.lock
        lock.on_busy = word_when_busy(self.options)
        return None if not held_here(lock) and lock.acquire() else self.on_busy(self.options)

    async def atake(self) -> Skipped | None:
        """Do what ``take`` does, for coroutines."""
        lock = self.options.lock
        lock.on_busy = word_when_busy(self.options)
        return None if not held_here(lock) and await lock.aacquire() else self.on_busy(self.options)


class RejectedHere(Reject, Ignore):
    """The ``Reject`` of ``apply()``, whose state is ``REJECTED``; no failure for ``autoretry_for=(Exception,)``."""


def held_here(lock: Acquirable) -> bool:
    """Return whether this very thread holds ``lock``, which is noted as its conflict then."""
    lease = leases_here().get(lock.name)
    if lease is None or lease.released or lease.lost:
        return False
    text = f"lock {lock.name!r} is held by this very thread, which called its task again"
    lock.conflict = TaskLockAcquireError(text, name=lock.name)
    return True


def reject_or_raise(options: CallOptions) -> Skipped:
    """Reject an eager call, or do what every direct call does."""
    if options.on_conflict == "reject":
        error = conflict_of(options.lock)
        events.conflict(error, "reject")
        raise RejectedHere(str(error), requeue=False)
    return skip_or_raise(options)


def once_call(
    task: Any,
    name: str,
    terms: Mapping[str, Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    way: Way,
    message: Message | None,
) -> Call:
    """Return one call of a task on these terms. ``message``: the one that a worker was sent."""
    own: LockOptions = terms["lock"]
    options = own.call(name, row_of(task, args, kwargs))
    options.lock.kind = clean_kind(task.name)
    if message is not None:
        lock = cast(TaskLock, options.lock)
        if handle := message.header.get("kept"):
            supersede(lock, token_of(handle))
        kept = LockOverRetry(lock, message.request) if terms["retry_keeps_lock"] else None
        return Call(options, TaskCall(options, message, kept, callers_park=True))
    if way == "eager":
        return Call(options, DirectCall(options, reject_or_raise))
    if is_map(get_current_task()):
        options = in_map(options)
    return Call(options, DirectCall(options))


_signature = lru_cache(maxsize=256)(inspect.signature)  # to read it takes longer than to bind to it


def row_of(task: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> GuardedRow | None:
    """Return the row that a call works on, if its task has a guard."""
    if task.guard is None:
        return None
    bound = _signature(task.run).bind(*args, **kwargs)
    bound.apply_defaults()
    model = apps.get_model(task.model) if isinstance(task.model, str) else task.model
    return GuardedRow(model, bound.arguments[task.pk], task.guard)
