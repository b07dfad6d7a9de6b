"""The owner of a lease: a thread, an asyncio task or a single call in a thread pool, and the leases that it holds."""

from __future__ import annotations

import asyncio
import sys
import threading
import weakref
from contextvars import ContextVar

from asgiref.sync import AsyncToSync, SyncToAsync

from django_tasklock.exceptions import TaskLockError
from django_tasklock.locks import lease as leases
from django_tasklock.locks.lease import Lease
from django_tasklock.names import each_of

MOST_PREDECESSORS = 8
"""Calls of one coroutine that an owner remembers."""


class Owner(dict[str, Lease]):
    """A thread, an asyncio task or a single call, and the leases that it holds, by name."""

    __slots__ = (
        "__weakref__",
        "_permits",
        "_predecessor",
        "_stored",
        "call",
        "executor",
        "generation",
        "ref",
        "thread",
    )

    def __init__(self) -> None:
        self.generation = leases.generation
        self.ref = weakref.ref(self)
        """The one reference by which others identify it: its id is not used again while one of them keeps it."""
        self._predecessor: weakref.ref[Owner] | None = None
        self._stored: Owner | None = None
        self.thread = 0
        """The id of the thread; 0 for an asyncio task."""
        self.call: list[object] | None = None
        """For a ``sync_to_async`` call: the tasks that ``async_to_sync`` runs for it."""
        self.executor: object = None
        """For a thread: the executor that already waits in it."""

    @property
    def permits(self) -> Owner:
        """The permits that it holds. They are apart from its locks, which may have the same names."""
        found: Owner | None = getattr(self, "_permits", None)
        if found is None:
            found = self._permits = Owner()
        return found

    def find_covering(self, name: str) -> Lease | None:
        """Return the lease that includes all the names in ``name``.

        Raises ``TaskLockError`` where a lease includes only some of them: it could not be released while this call
        waits for it.
        """
        found: Lease | None = None
        each = each_of(name)
        for one in each:
            lease = self.get(one)
            if lease is None or lease.released or lease.lost:
                continue
            found = lease
            if not set(each) <= set(each_of(lease.name)):
                raise TaskLockError(
                    f"lock {name!r}: {one!r} is already held by this thread or asyncio task, and not all of the others;"
                    " take all names at once, or release that one first",
                    name=one,
                )
        return found

    @property
    def predecessor(self) -> Owner | None:
        """The owner that ran before it in the same coroutine: the coroutine itself, or a call that it made."""
        found = self._stored  # not ``or``: an owner without leases is false
        if found is None and self._predecessor is not None:
            found = self._predecessor()
        return None if found is None or found.generation != leases.generation else found

    def follow(self, predecessor: Owner | None) -> None:
        """Remember ``predecessor``, so that a call finds what an earlier call of the same coroutine was answered."""
        if predecessor is None or predecessor is self:
            return
        if predecessor.call is None:  # it lives longer than this one, to which it may refer itself
            self._predecessor, self._stored = weakref.ref(predecessor), None
            return
        self._stored = owner = predecessor
        for _ in range(MOST_PREDECESSORS):
            if owner._stored is None:
                return
            owner = owner._stored
        owner._stored = None

    @property
    def empty(self) -> bool:
        """Whether it holds neither leases nor permits."""
        return not self and not getattr(self, "_permits", None)


class _ContextMark:
    """The context that an owner belongs to, recognized by a ``ContextVar`` token that was made in it."""

    __slots__ = ("owner", "token")

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.token = _last_owner.set(owner)

    def is_current(self) -> bool:
        """Tell whether the running context is this one."""
        try:
            _last_owner.reset(self.token)
        except ValueError:  # "was created in a different Context"
            return False
        except RuntimeError:  # "has already been used": an exception from a signal handler came before the next line
            pass
        self.token = _last_owner.set(self.owner)
        return True


_last_owner: ContextVar[Owner | None] = ContextVar("tasklock_last_owner", default=None)
_threads = threading.local()
_tasks: weakref.WeakKeyDictionary[asyncio.Task[object], Owner] = weakref.WeakKeyDictionary()
_SYNC_TO_ASYNC_CALL = SyncToAsync.thread_handler.__code__


def current_owner() -> Owner:
    """Return the running asyncio task as an owner; outside of one, the running context of a thread or of a single call.

    ``sync_to_async`` and ``asyncio.to_thread`` run each call in a context of its own, in a thread that serves many
    calls: such a call owns what it has acquired itself, and neither the leases of the thread nor those of its
    coroutine. A coroutine that ``async_to_sync`` runs shares the leases of its caller, which waits for it; the tasks
    that the coroutine starts do not.
    """
    if asyncio._get_running_loop() is not None:
        task = asyncio.current_task()
        if task is not None:
            owner = _tasks.get(task)
            if owner is None:
                caller = _waiting_caller(task)
                owner = _tasks[task] = Owner() if caller is None else caller
            if (last := _last_owner.get()) is not owner:
                if last is not None and last.call is not None:
                    owner.follow(last)
                _last_owner.set(owner)
            return owner
    try:
        marks: list[_ContextMark] = _threads.marks
    except AttributeError:
        marks = _threads.marks = []
    if marks:
        mark = marks[-1]
        try:
            _last_owner.reset(mark.token)  # is_current() without the call: this is the usual case
        except (ValueError, RuntimeError):
            if mark.is_current():
                return mark.owner
        else:
            mark.token = _last_owner.set(mark.owner)
            return mark.owner
    for mark in marks[-2::-1]:  # rarely more than one
        if mark.is_current():
            return mark.owner
    owner = Owner()
    owner.thread = threading.get_ident()
    owner.executor = getattr(AsyncToSync.executors, "current", None)
    owner.call = _sync_to_async_call()
    owner.follow(_last_owner.get())
    marks[:] = [mark for mark in marks if not mark.owner.empty]  # contexts that hold leases stay as long as the thread
    marks.append(_ContextMark(owner))
    return owner


def _sync_to_async_call() -> list[object] | None:
    """Return asgiref's task list of the ``sync_to_async`` call that runs here; ``None`` outside of such a call."""
    tasks: list[object] | None = getattr(SyncToAsync.threadlocal, "task_context", None)
    frame = None if tasks is None else sys._getframe(1)  # an earlier call may have left the list there
    while frame is not None:
        if frame.f_code is _SYNC_TO_ASYNC_CALL:
            return tasks
        frame = frame.f_back
    return None


def _waiting_caller(task: asyncio.Task[object]) -> Owner | None:
    """Return the synchronous caller that waits while ``async_to_sync`` runs this task; ``None`` if there is none."""
    caller = _last_owner.get()
    if caller is None or not caller.thread or caller.generation != leases.generation:
        return None
    if not getattr(task.get_coro(), "__qualname__", "").startswith("AsyncToSync."):
        return None  # started by the coroutine that the caller waits for: it may run beside that
    if caller.call is not None:
        return caller if task in caller.call else None
    executor = getattr(AsyncToSync.executors, "current", None)
    thread = getattr(getattr(executor, "_work_thread", None), "ident", None)
    enclosing = getattr(executor, "_old_executor", executor)
    return caller if thread == caller.thread and enclosing is caller.executor else None


def disown(lease: Lease) -> None:
    """Remove a lease from its owner. Any thread may do so: a lease may be released by another thread."""
    owner = None if lease.owner is None else lease.owner()
    if owner is None:
        return
    for name in (lease.name,) if type(lease.name) is str else each_of(lease.name):
        if owner.get(name) is lease:  # a lost one may have been replaced
            del owner[name]


def forget() -> None:
    """Forget the leases of all threads and coroutines of this process."""
    global _threads, _tasks
    _threads = threading.local()
    _tasks = weakref.WeakKeyDictionary()


def after_fork() -> None:
    """Forget the leases of the parent's threads and coroutines."""
    forget()
