"""Locked functions that a task's body calls, and calls by ``task.map()``, ``starmap()`` and ``chunks()``.

In those Celery's own task calls the other one once for each element.
"""

from __future__ import annotations

from typing import Any, cast

from celery._state import _task_stack, get_current_worker_task  # type: ignore[attr-defined]

from django_tasklock.celery.delivery.defer import defer
from django_tasklock.celery.delivery.duplicates import Attempt, aacquire_now, acquire_now
from django_tasklock.celery.message import Message
from django_tasklock.decorators.call import CallStrategy, Skipped, skip_or_raise
from django_tasklock.decorators.options import CallOptions
from django_tasklock.locks.lock import TaskLock

KEPT_IN_MAP = ("raise", "wait")
"""Words that raise in the middle of a map as well: whoever wrote them wants to know."""


class NestedCall(CallStrategy):
    """A call of a locked function somewhere inside a task's body: its message is not its own to put aside."""

    def __init__(self, options: CallOptions) -> None:
        super().__init__(options)
        self.lock = cast(TaskLock, options.lock)
        self.message = Message(get_current_worker_task())

    def take(self) -> Skipped | None:
        """Take the lock, of a dead delivery of this message as well. Raises ``Duplicate`` if a living one has it."""
        taken = self._taken(acquire_now(self.lock, self.message)) or (self._waits and self.lock.acquire())
        return None if taken else skip_or_raise(self.options)

    async def atake(self) -> Skipped | None:
        """Do what ``take`` does, for coroutines."""
        taken = self._taken(await aacquire_now(self.lock, self.message)) or (self._waits and await self.lock.aacquire())
        return None if taken else skip_or_raise(self.options)

    def _taken(self, attempt: Attempt) -> bool:
        if attempt.unsure:
            defer(self.message, self.lock)
        return attempt.taken

    @property
    def _waits(self) -> bool:
        return self.options.on_conflict == "wait"


class MapElementCall(CallStrategy):
    """A call of a decorated task by a map inside a worker's task: the other elements have a right to run."""

    def __init__(self, options: CallOptions) -> None:
        options = in_map(options)
        super().__init__(options)
        self._nested = NestedCall(options)

    def take(self) -> Skipped | None:
        """Take the lock as ``NestedCall`` does; most words skip."""
        return self._nested.take()

    async def atake(self) -> Skipped | None:
        """Do what ``take`` does, for coroutines."""
        return await self._nested.atake()


def in_map(options: CallOptions) -> CallOptions:
    """Return the options of one call by a map: it is skipped where it could only be put aside."""
    return options if options.on_conflict in KEPT_IN_MAP else options._replace(on_conflict="skip")


def is_map(task: Any) -> bool:
    """Return whether ``task`` is one of those that call another one for each element."""
    return task is not None and task.name in ("celery.map", "celery.starmap")


def is_element(task: Any) -> bool:
    """Return whether the call of ``task``, which runs here, was made by such a one."""
    stack = _task_stack.stack
    return len(stack) > 1 and stack[-1] is task and is_map(stack[-2])
