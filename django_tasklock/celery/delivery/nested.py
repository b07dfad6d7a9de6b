"""Locked functions called by a task's body, and the calls of ``task.map()``, ``starmap()`` and ``chunks()``.

For these three Celery's own task calls the other one once per element.
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

RAISING_IN_MAP = ("raise", "wait")
"""The values of ``on_conflict`` that raise inside a map as well, as their authors expect."""


class NestedCall(CallStrategy):
    """A call of a locked function inside a task's body, which must not put the body's message aside."""

    def __init__(self, options: CallOptions) -> None:
        super().__init__(options)
        self.lock = cast(TaskLock, options.lock)
        self.message = Message(get_current_worker_task())

    def take(self) -> Skipped | None:
        """Acquire the lock, also from a dead delivery of this message.

        Raises ``Duplicate`` if a living delivery of it holds the lock.
        """
        taken = self._taken(acquire_now(self.lock, self.message)) or (self._waits and self.lock.acquire())
        return None if taken else skip_or_raise(self.options)

    async def atake(self) -> Skipped | None:
        """Do what ``take`` does, for coroutines."""
        taken = self._taken(await aacquire_now(self.lock, self.message)) or (self._waits and await self.lock.aacquire())
        return None if taken else skip_or_raise(self.options)

    def _taken(self, attempt: Attempt) -> bool:
        if attempt.undecided:
            defer(self.message, self.lock)
        return attempt.taken

    @property
    def _waits(self) -> bool:
        return self.options.on_conflict == "wait"


class MapElementCall(CallStrategy):
    """A call of a decorated task by a map in a worker: a busy element must not prevent the others from running."""

    def __init__(self, options: CallOptions) -> None:
        options = map_options(options)
        super().__init__(options)
        self._nested = NestedCall(options)

    def take(self) -> Skipped | None:
        """Acquire the lock as ``NestedCall`` does; with most values of ``on_conflict`` a busy one skips the element."""
        return self._nested.take()

    async def atake(self) -> Skipped | None:
        """Do what ``take`` does, for coroutines."""
        return await self._nested.atake()


def map_options(options: CallOptions) -> CallOptions:
    """Return the options of one call by a map: it is skipped instead of put aside."""
    return options if options.on_conflict in RAISING_IN_MAP else options._replace(on_conflict="skip")


def is_map(task: Any) -> bool:
    """Return whether ``task`` is one of Celery's tasks that call another one for each element."""
    return task is not None and task.name in ("celery.map", "celery.starmap")


def is_element(task: Any) -> bool:
    """Return whether the current call of ``task`` was made by a map."""
    stack = _task_stack.stack
    return len(stack) > 1 and stack[-1] is task and is_map(stack[-2])
