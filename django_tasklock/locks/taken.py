"""Who has taken a lease, and what the running code was answered through a lock object.

The answers are in the code's context, from where they follow it into the calls of ``sync_to_async`` and back. They also
follow into the tasks that it starts, which run beside it: so each lease knows its taker. All references are weak: a
lease lives as long as its taker, its block or the object that it was acquired through has it.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import weakref
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

from asgiref.sync import AsyncToSync, SyncToAsync

if TYPE_CHECKING:
    from django_tasklock.locks.lease import Lease

MOST = 32
"""Answers without a lease that a context remembers."""
_THREAD_HANDLER = SyncToAsync.thread_handler.__code__


class Taker:
    """An asyncio task; outside of one, a thread, or the single call of ``sync_to_async`` that runs in it."""

    __slots__ = ("_call", "_executor", "_task", "_thread")

    def __init__(self) -> None:
        task = _running_task()
        self._task = None if task is None else weakref.ref(task)
        self._thread = threading.get_ident()
        self._call = None if task is not None else _sync_to_async_call()
        self._executor = getattr(AsyncToSync.executors, "current", None)

    def here(self) -> bool:
        """Tell whether it runs here: itself, or a coroutine that it runs by ``async_to_sync`` and waits for."""
        task = _running_task()
        if self._task is not None:
            return task is not None and self._task() is task
        if task is not None:
            return self._waits_for(task)
        return self._thread == threading.get_ident() and self._call is _sync_to_async_call()

    def is_another_task(self) -> bool:
        """Tell whether it is an asyncio task that runs beside the one that runs here."""
        task, taker = _running_task(), None if self._task is None else self._task()
        return task is not None and taker is not None and taker is not task and not taker.done()

    def _waits_for(self, task: asyncio.Task[object]) -> bool:
        if not getattr(task.get_coro(), "__qualname__", "").startswith("AsyncToSync."):
            return False  # started by the coroutine that the caller waits for: it may run beside that
        if self._call is not None:
            return task in self._call
        executor = getattr(AsyncToSync.executors, "current", None)  # of the caller, which idles in it
        thread = getattr(getattr(executor, "_work_thread", None), "ident", None)
        return thread == self._thread and getattr(executor, "_old_executor", executor) is self._executor


def _running_task() -> asyncio.Task[object] | None:
    return None if asyncio._get_running_loop() is None else asyncio.current_task()


def _sync_to_async_call() -> list[object] | None:
    """Return asgiref's list of the tasks that the ``sync_to_async`` call running here waits for; ``None``: no call."""
    frame = sys._getframe(1) if hasattr(SyncToAsync.threadlocal, "task_context") else None
    while frame is not None:
        if frame.f_code is _THREAD_HANDLER:
            tasks: list[object] = frame.f_locals["task_context"]
            return tasks
        frame = frame.f_back
    return None


class Answer(NamedTuple):
    """What the code of a context was answered through one object."""

    lock: weakref.ref[Any]
    lease: weakref.ref[Lease] | None
    """``None``: it was refused, or has released what it had."""

    @property
    def held(self) -> Lease | None:
        """The lease, unless it was released or belongs to another process."""
        lease = None if self.lease is None else self.lease()
        return None if lease is None or lease.released or lease.inherited else lease


_answers: ContextVar[tuple[Answer, ...]] = ContextVar("tasklock_answers", default=())


def note(lock: Any, lease: Lease | None) -> None:
    """Note what ``lock`` has answered; ``None``: it was refused."""
    known = [one for one in _answers.get() if one.held or one.lock() not in (None, lock)]
    oldest = len(known) - MOST
    known = [one for number, one in enumerate(known) if one.held or number >= oldest]
    _answers.set((*known, Answer(weakref.ref(lock), None if lease is None else weakref.ref(lease))))


def note_release(lock: Any, lease: Lease) -> None:
    """Note that ``lease`` is given back once. Others may still hold it, through other objects."""
    known = list(_answers.get())
    mine = [number for number, one in enumerate(known) if one.lock() is lock and one.held is lease]
    if mine:
        del known[mine[-1]]
        if not any(one.lock() is lock and one.held and one.held.taker.here() for one in known):
            known.append(Answer(weakref.ref(lock), None))
        _answers.set(tuple(known))


def answer_of(lock: Any) -> Answer | None:
    """Return what the running code was answered last through ``lock``; ``None``: it has never asked."""
    one: Answer
    for one in reversed(_answers.get()):
        if one.lock() is lock:
            lease = one.held
            if lease is None or not lease.taker.is_another_task():
                return one
    return None


def leases_here() -> Iterator[Lease]:
    """Return the leases that the running thread, task or call holds itself, the latest first."""
    for one in reversed(_answers.get()):
        lease = one.held
        if lease is not None and not lease.lost and lease.taker.here():
            yield lease
