"""Calls of a ``OnceTask``: by a worker, directly and eagerly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from celery._state import get_current_task
from celery.exceptions import Ignore, Reject

from django_tasklock.celery.definition import body_of
from django_tasklock.celery.delivery.nested import HelperCaller, is_map, skip_element
from django_tasklock.celery.delivery.run import TaskCaller
from django_tasklock.celery.message import Message
from django_tasklock.celery.options import OnceOptions
from django_tasklock.decorators.call import Call, Skipped
from django_tasklock.decorators.rows import GuardedRow
from django_tasklock.exceptions import TaskLockAcquireError
from django_tasklock.locks import events
from django_tasklock.locks.lease import Lease, Refusal
from django_tasklock.names import parameters_of

Invocation = Literal["message", "eager", "call"]
"""How a task was called: from a message, by ``apply()``, or like a function."""


class DirectCaller(HelperCaller):
    """A direct call: there is no message to put aside, and the call must not wait for its own thread.

    ``eager``: whether it was made by ``apply()``.
    """

    def __init__(self, call: Call, eager: bool) -> None:
        super().__init__(call)
        self.rejects = eager and call.on_conflict == "reject"
        if self.rejects:
            self.action = "reject"

    def before(self) -> Skipped | None:
        """Refuse the call if this very thread holds its lock."""
        lock = self.call.lock
        if lock.held_here() is None:
            return None
        text = f"lock {lock.name!r} is held by this very thread, which called its task again"
        return self._refuse(TaskLockAcquireError(text, name=lock.name))

    def on_busy(self, refusal: Refusal) -> Lease | Skipped:
        """Skip the call, reject it, or raise."""
        return self._refuse(refusal.error)

    def _refuse(self, error: TaskLockAcquireError) -> Skipped:
        if self.rejects:
            events.conflict(error, "reject")
            raise RejectedHere(str(error), requeue=False)
        return self.call.skip_or_raise(error)


class RejectedHere(Reject, Ignore):
    """The ``Reject`` of ``apply()``, with the state ``REJECTED``; ``autoretry_for=(Exception,)`` does not retry it."""


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
    call = chosen.lock.call(name, row_of(task, args, kwargs), task.name)
    if message is not None:
        call.caller = TaskCaller(call, message, callers_park=True)
        return call
    if invocation == "call" and is_map(get_current_task()):
        skip_element(call)
    call.caller = DirectCaller(call, eager=invocation == "eager")
    return call


def row_of(task: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> GuardedRow | None:
    """Return the row that a call works on, if its task has a guard."""
    if task.guarded is None:
        return None
    row: GuardedRow = task.guarded.of(parameters_of(body_of(task)).bind(args, kwargs))
    return row
