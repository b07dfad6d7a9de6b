"""A lease, which is one acquisition, and which of them belong to the thread, asyncio task or call that asks.

After a fork the child has none: it neither renews nor releases what its parent holds.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING

from asgiref.sync import AsyncToSync, SyncToAsync

from django_tasklock.types import Grant, Record, monotonic

if TYPE_CHECKING:
    from django_tasklock.backends.contract.leases import LeaseStore

GONE = "the store no longer knows it: it expired, was released by force, or the store was flushed"
"""Why a lease is lost that the store does not know any more."""
LINEAGE = 8
"""Calls of one coroutine that know of each other."""
LOOK = 1.0  # seconds in which the store is asked once whether a lease stands
ROUNDED = 1  # milliseconds by which a store may count a lease too short: its clock has no fractions of them


class Lease:
    """A lock in somebody's hands. Times are seconds on the monotonic clock of this process.

    ``span``: how long its key lives without a renewal, in milliseconds; ``None``: nobody renews it. ``deadline``: until
    then the lease is certain, counted from before the request that was answered. ``until``: the end of the timeout.
    ``due``: the next renewal, which may be ``slack`` early to go along with others. ``asked``: somebody wants it back;
    ``looked``: when the store was last asked about that.
    """

    fence = 0
    count = 1
    deadline = until = due = slack = 0.0
    asked = False
    kind: str | None = None
    """What it is counted as; ``None``: it is not counted."""
    looked = 0.0
    on_asked: Callable[[], None] | None = None
    released = False
    successor: Lease | None = None
    """What was taken in place of this one, when that was lost."""
    unlocked = False
    home: weakref.ref[Leases] | None = None
    _lost = ""

    def __init__(self, backend: LeaseStore, name: str, span: int | None, on_lost: Callable[[str], None] | None) -> None:
        self.backend = backend
        self.name = name
        self.token = os.urandom(16).hex()
        self.span = span
        self.on_lost = on_lost
        self.entered: list[object] = []
        self.bells: list[Callable[[], None]] = []
        """Called when it is lost, or asked for: whoever sleeps inside of it wakes."""
        self.generation = _generation

    def granted(self, grant: Grant, asked: float, hold: int) -> None:
        """Take over what the store said to a request sent at ``asked``."""
        self.fence = grant.fence
        self.until = asked + hold / 1000
        ttl = grant.ttl  # as below
        self.deadline = asked + (ttl - ROUNDED) / 1000
        self.due = asked + ttl / 3000
        self.slack = ttl / 10_000

    def renewed(self, asked: float, ttl: int) -> None:
        """Note that the key lives ``ttl`` milliseconds from ``asked``, at least."""
        self.deadline = asked + (ttl - ROUNDED) / 1000
        self.due = asked + ttl / 3000
        self.slack = ttl / 10_000

    @property
    def lost(self) -> str:
        """Why the lease is certainly gone; empty while it is not."""
        if not self._lost and not self.unlocked and monotonic() >= self.deadline:
            return "its timeout is over" if self.last else "it could not be renewed in time"
        return self._lost

    def lose(self, reason: str) -> bool:
        """Note the loss; True for the first to do so."""
        if self._lost or self.released:
            return False
        self._lost = reason
        self._ring()
        return True

    def request_release(self) -> bool:
        """Note that somebody wants it back; True for the first to do so."""
        if self.asked or self.released:
            return False
        self.asked = True
        self._ring()
        return True

    def _ring(self) -> None:
        for ring in list(self.bells):
            ring()

    def due_to_look(self) -> bool:
        """Tell whether to ask the store now, which hears of a loss, and of who asks for it, at once."""
        now = monotonic()
        if self.unlocked or self.lost or self.asked or now < self.looked + LOOK:
            return False
        self.looked = now
        return True

    def heard(self, record: Record | None) -> None:
        """Take note of what the store said: who has the lock."""
        if record is None or record.token != self.token:
            if self.lose(GONE) and self.on_lost is not None:  # the heartbeat drops it at its next turn
                self.on_lost(self._lost)
        elif record.asked and self.request_release() and self.on_asked is not None:
            self.on_asked()

    @property
    def last(self) -> bool:
        """Whether the lease goes to the end of the timeout: there is no more to renew."""
        return self.deadline >= self.until - 2 * ROUNDED / 1000

    @property
    def foreign(self) -> bool:
        """True in a process forked from the one that has the lock."""
        return self.generation != _generation

    def settle(self, home: Leases) -> None:
        """Belong to the thread or asyncio task whose ``home`` this is."""
        self.home = home.ref  # first: a time limit may strike in between, and who is struck leaves it
        home[self.name] = self

    def leave(self) -> None:
        """Belong to nobody any more, whoever says so: another thread may release what one has taken."""
        home = None if self.home is None else self.home()
        if home is not None and home.get(self.name) is self:
            del home[self.name]


class Leases(dict[str, Lease]):
    """By name, what one thread, asyncio task or call holds."""

    __slots__ = ("__weakref__", "_before", "_kept", "_permits", "call", "executor", "generation", "ref", "thread")

    def __init__(self) -> None:
        self.generation = _generation
        self.ref = weakref.ref(self)
        """The one by which all who remember it know it: while they have that, no other has its place."""
        self._before: weakref.ref[Leases] | None = None
        self._kept: Leases | None = None
        self.thread = 0
        """Of whoever is no asyncio task."""
        self.call: list[object] | None = None
        """Of a ``sync_to_async`` call: the tasks for which ``async_to_sync`` waits in it."""
        self.executor: object = None
        """Of a thread: what waits in it already."""

    @property
    def permits(self) -> Leases:
        """Its permits, which are no locks even where they have the same name."""
        found: Leases | None = getattr(self, "_permits", None)
        if found is None:
            found = self._permits = Leases()
        return found

    @property
    def before(self) -> Leases | None:
        """Who asked before it in the same coroutine, itself or a call that it made."""
        before = self._kept  # not ``or``: who has nothing is false
        if before is None and self._before is not None:
            before = self._before()
        return None if before is None or before.generation != _generation else before

    def after(self, before: Leases | None) -> None:
        """Remember who asked before, so that one call knows what another of the same coroutine was answered."""
        if before is None or before is self:
            return
        if before.call is None:  # it lives longer than this, which it may keep itself
            self._before, self._kept = weakref.ref(before), None
            return
        self._kept = call = before
        for _ in range(LINEAGE):
            if call._kept is None:
                return
            call = call._kept
        call._kept = None

    @property
    def empty(self) -> bool:
        """Whether nothing is held, permits included."""
        return not self and not getattr(self, "_permits", None)


class _Mark:
    """Where some ``Leases`` belong to: the context in which the token was made, of which there are only copies."""

    __slots__ = ("leases", "token")

    def __init__(self, leases: Leases) -> None:
        self.leases = leases
        self.token = _asked.set(leases)

    def here(self) -> bool:
        """Tell whether that context is the one that runs here."""
        try:
            _asked.reset(self.token)
        except ValueError:  # "was created in a different Context"
            return False
        except RuntimeError:  # "has already been used": a time limit struck before the next line
            pass
        self.token = _asked.set(self.leases)
        return True


_generation = 0
_asked: ContextVar[Leases | None] = ContextVar("tasklock_asked", default=None)
_threads = threading.local()
_tasks: weakref.WeakKeyDictionary[asyncio.Task[object], Leases] = weakref.WeakKeyDictionary()
_CALLS = SyncToAsync.thread_handler.__code__


def leases_here() -> Leases:
    """Return what the running asyncio task holds; else the context this code runs in: a thread's, or a single call's.

    ``sync_to_async`` and ``asyncio.to_thread`` run each call in a context of its own, in a thread that serves many:
    what runs there holds what it has taken itself, and not what the thread, or its coroutine, has taken before. The
    coroutine that ``async_to_sync`` runs holds what its caller holds, who waits for it; tasks that it starts do not.
    """
    if asyncio._get_running_loop() is not None:
        task = asyncio.current_task()
        if task is not None:
            found = _tasks.get(task)
            if found is None:
                caller = _callers(task)
                found = _tasks[task] = Leases() if caller is None else caller
            if (last := _asked.get()) is not found:
                if last is not None and last.call is not None:
                    found.after(last)
                _asked.set(found)
            return found
    try:
        marks: list[_Mark] = _threads.marks
    except AttributeError:
        marks = _threads.marks = []
    if marks:
        mark = marks[-1]
        try:
            _asked.reset(mark.token)  # as in mark.here(), which is not called: nearly all come by here
        except (ValueError, RuntimeError):
            if mark.here():
                return mark.leases
        else:
            mark.token = _asked.set(mark.leases)
            return mark.leases
    for mark in marks[-2::-1]:  # hardly ever more than one
        if mark.here():
            return mark.leases
    leases = Leases()
    leases.thread = threading.get_ident()
    leases.executor = getattr(AsyncToSync.executors, "current", None)
    leases.call = _call()
    leases.after(_asked.get())
    marks[:] = [mark for mark in marks if not mark.leases.empty]  # what is held in a thread is, as long as that lives
    marks.append(_Mark(leases))
    return leases


def _call() -> list[object] | None:
    """Return what asgiref notes of the ``sync_to_async`` call that this is part of; ``None`` if it is part of none."""
    noted: list[object] | None = getattr(SyncToAsync.threadlocal, "task_context", None)
    frame = None if noted is None else sys._getframe(1)  # it may be left there by a call before
    while frame is not None:
        if frame.f_code is _CALLS:
            return noted
        frame = frame.f_back
    return None


def _callers(task: asyncio.Task[object]) -> Leases | None:
    """Return what the synchronous caller holds for whom asgiref runs this task, if it is one of those."""
    caller = _asked.get()
    if caller is None or not caller.thread or caller.generation != _generation:
        return None
    if not getattr(task.get_coro(), "__qualname__", "").startswith("AsyncToSync."):
        return None  # started by the coroutine that the caller waits for: it may run beside it
    if caller.call is not None:
        return caller if task in caller.call else None
    waits = getattr(AsyncToSync.executors, "current", None)
    thread = getattr(getattr(waits, "_work_thread", None), "ident", None)
    around = getattr(waits, "_old_executor", waits)
    return caller if thread == caller.thread and around is caller.executor else None


def forget() -> None:
    """Make foreign what the threads and coroutines of this process hold, as if another process had taken it."""
    global _generation, _threads, _tasks
    _generation += 1
    _threads = threading.local()
    _tasks = weakref.WeakKeyDictionary()


def after_fork() -> None:
    """Forget what the parent's threads and coroutines hold."""
    forget()
