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
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

from asgiref.sync import AsyncToSync, SyncToAsync

from django_tasklock.names import each_of
from django_tasklock.process import check_process

if TYPE_CHECKING:
    from django_tasklock.locks.lease import Lease

MOST = 32
"""Names without a lease that a context remembers, at least half of them."""
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


class _Known(NamedTuple):
    """What a context remembers. It is replaced, never changed: other contexts may have the same."""

    by_name: dict[str, tuple[Answer, ...]]
    """The answers of each name, the latest last; those for a lock of several names are found by each of them."""
    most: int
    """The number of names beyond which those that nobody holds are forgotten."""


_NOTHING = _Known({}, MOST)
_known: ContextVar[_Known] = ContextVar("tasklock_answers", default=_NOTHING)


def note(lock: Any, lease: Lease | None) -> None:
    """Note what ``lock`` has answered; ``None``: it was refused."""
    known = _known.get()
    by_name = dict(known.by_name)
    answer = Answer(weakref.ref(lock), None if lease is None else weakref.ref(lease))
    for name in each_of(lock.name):
        kept = [one for one in by_name.get(name, ()) if one.held or one.lock() not in (None, lock)]
        by_name[name] = (*kept, answer)
    _known.set(_Known(by_name, known.most) if len(by_name) <= known.most else _without_old(by_name))


def _without_old(by_name: dict[str, tuple[Answer, ...]]) -> _Known:
    """Forget the names of which nothing is held, but for the latest. The next time is when there are twice as many."""
    free = [name for name, answers in by_name.items() if not any(one.held for one in answers)]
    for name in free[: -MOST // 2]:
        del by_name[name]
    return _Known(by_name, 2 * len(by_name) + MOST)


def note_release(lock: Any, lease: Lease) -> None:
    """Note that ``lease`` is given back once. Others may still hold it, through other objects."""
    known = _known.get()
    by_name = dict(known.by_name)
    for name in each_of(lock.name):
        answers = list(by_name.get(name, ()))
        mine = [number for number, one in enumerate(answers) if one.lock() is lock and one.held is lease]
        if mine:
            del answers[mine[-1]]
            if not any(one.lock() is lock and one.held and one.held.taker.here() for one in answers):
                answers.append(Answer(weakref.ref(lock), None))
            by_name[name] = tuple(answers)
    _known.set(_Known(by_name, known.most))


def answer_of(lock: Any) -> Answer | None:
    """Return what the running code was answered last through ``lock``; ``None``: it has never asked."""
    check_process()
    one: Answer
    for one in reversed(_known.get().by_name.get(each_of(lock.name)[0], ())):
        if one.lock() is lock:
            lease = one.held
            if lease is None or not lease.taker.is_another_task():
                return one
    return None


def leases_here(names: Iterable[str] | None = None) -> Iterator[Lease]:
    """Return the leases that the running thread, task or call holds itself, of each name the latest first.

    ``names``: only those with one of these names. A lease of several names comes once for each.
    """
    by_name = _known.get().by_name
    for name in by_name if names is None else names:
        for one in reversed(by_name.get(name, ())):
            lease = one.held
            if lease is not None and not lease.lost and lease.taker.here():
                yield lease
