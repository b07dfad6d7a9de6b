"""Who has taken what: the thread, asyncio task or call that asks, over all lock objects and through one of them."""

from __future__ import annotations

import asyncio
import sys
import threading
import weakref
from contextvars import ContextVar
from typing import NamedTuple

from asgiref.sync import AsyncToSync, SyncToAsync

from django_tasklock.exceptions import TaskLockAcquireError, TaskLockError
from django_tasklock.locks import lease as now
from django_tasklock.locks.lease import Lease
from django_tasklock.names import each_of
from django_tasklock.types import Record

LINEAGE = 8  # calls of one coroutine that know of each other
PRUNE = 50  # threads and asyncio tasks that have shared one object, before those that ended are forgotten


class Leases(dict[str, Lease]):
    """By name, what one thread, asyncio task or call holds."""

    __slots__ = ("__weakref__", "_before", "_kept", "_permits", "call", "executor", "generation", "ref", "thread")

    def __init__(self) -> None:
        self.generation = now.generation
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

    def around(self, name: str) -> Lease | None:
        """Return the lease that has all these names. Raises ``TaskLockError`` where one has only some of them: nobody
        would ever give those back to whoever waits for them here.
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
    def before(self) -> Leases | None:
        """Who asked before it in the same coroutine, itself or a call that it made."""
        before = self._kept  # not ``or``: who has nothing is false
        if before is None and self._before is not None:
            before = self._before()
        return None if before is None or before.generation != now.generation else before

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
        self.token = _last_caller.set(leases)

    def here(self) -> bool:
        """Tell whether that context is the one that runs here."""
        try:
            _last_caller.reset(self.token)
        except ValueError:  # "was created in a different Context"
            return False
        except RuntimeError:  # "has already been used": a time limit struck before the next line
            pass
        self.token = _last_caller.set(self.leases)
        return True


_last_caller: ContextVar[Leases | None] = ContextVar("tasklock_last_caller", default=None)
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
            if (last := _last_caller.get()) is not found:
                if last is not None and last.call is not None:
                    found.after(last)
                _last_caller.set(found)
            return found
    try:
        marks: list[_Mark] = _threads.marks
    except AttributeError:
        marks = _threads.marks = []
    if marks:
        mark = marks[-1]
        try:
            _last_caller.reset(mark.token)  # as in mark.here(), which is not called: nearly all come by here
        except (ValueError, RuntimeError):
            if mark.here():
                return mark.leases
        else:
            mark.token = _last_caller.set(mark.leases)
            return mark.leases
    for mark in marks[-2::-1]:  # hardly ever more than one
        if mark.here():
            return mark.leases
    leases = Leases()
    leases.thread = threading.get_ident()
    leases.executor = getattr(AsyncToSync.executors, "current", None)
    leases.call = _call()
    leases.after(_last_caller.get())
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
    caller = _last_caller.get()
    if caller is None or not caller.thread or caller.generation != now.generation:
        return None
    if not getattr(task.get_coro(), "__qualname__", "").startswith("AsyncToSync."):
        return None  # started by the coroutine that the caller waits for: it may run beside it
    if caller.call is not None:
        return caller if task in caller.call else None
    waits = getattr(AsyncToSync.executors, "current", None)
    thread = getattr(getattr(waits, "_work_thread", None), "ident", None)
    around = getattr(waits, "_old_executor", waits)
    return caller if thread == caller.thread and around is caller.executor else None


class Refusal(NamedTuple):
    """Why a caller was refused, and who had the lock, where that could be read."""

    error: TaskLockAcquireError
    met: Record | None = None


class _Take:
    """What one thread, asyncio task or call has from the object: taken so many times, or refused."""

    __slots__ = ("home", "lease", "refusal", "times")

    def __init__(self, home: weakref.ref[Leases], lease: Lease | None, times: int) -> None:
        self.home = home
        self.lease = lease
        self.times = times
        self.refusal: Refusal | None = None

    @property
    def now(self) -> Lease | None:
        """What it has; what took the place of a lost one."""
        lease = self.lease
        while lease is not None and lease.successor is not None:
            lease = lease.successor
        return None if self.times <= 0 or lease is None or lease.released else lease


def disown(lease: Lease) -> None:
    """Take a lease out of its taker's ``Leases``, from any thread: another one may release it."""
    home = None if lease.home is None else lease.home()
    if home is None:
        return
    for name in (lease.name,) if type(lease.name) is str else each_of(lease.name):
        if home.get(name) is lease:  # or it was lost, and that one taken anew
            del home[name]


class Takes:
    """What callers have taken through one object, so that each finds the lease that is its own.

    ``permits``: those of a limiter, which are no locks even where they have the same name, and which nobody but their
    taker finds: the second release of one would be the other's first. ``own``: the leases to be used in place of
    the caller's, those of a process say.
    """

    __slots__ = ("_by", "_own", "_permits", "_prune_at", "last", "last_refusal")

    def __init__(self, *, permits: bool = False, own: Leases | None = None) -> None:
        self._by: dict[int, _Take] = {}  # by the id of what the entry keeps alive, so that no other has it
        self._own = own
        self._permits = permits
        self._prune_at = PRUNE
        self.last: Lease | None = None
        """What was taken last, by whomever."""
        self.last_refusal: Refusal | None = None
        """What was said to whoever was refused last."""

    def here(self) -> Leases:
        """Return everything the caller has taken, through any object."""
        if self._own is not None:
            return self._own
        here = leases_here()
        return here.permits if self._permits else here

    def find(self) -> Lease | None:
        """Return the caller's lease through this object; for a caller who never asked for it, the one taken last."""
        home = self.here()
        take = self._by.get(id(home.ref)) or self._previous()
        lease = (None if self._permits else self.last) if take is None else take.now
        return None if lease is None or lease.released or lease.generation != now.generation else lease

    def keep(self, lease: Lease, home: Leases) -> None:
        """Note that the caller, whose leases are ``home``, has taken ``lease``."""
        self.last = lease
        lease.home = home.ref  # first: a time limit may strike in between, and who is struck leaves it
        if type(lease.name) is str:
            home[lease.name] = lease
        else:  # not by their text, which may be that of another name
            home.update(dict.fromkeys(each_of(lease.name), lease))
        before = self._by.get(id(home.ref))
        if before is not None and before.lease is not None and not before.lease.released:
            before.lease.successor = lease  # that one is lost
        self._note(home, lease, 1)

    def note_reentry(self, lease: Lease) -> None:
        """Note that the caller has taken ``lease``, which it has, once more."""
        home = self.here()
        take = self._of(home)
        if take is not None and take.lease is lease:
            take.times += 1
        else:
            self._note(home, lease, 1)
        lease.count += 1
        self.last = lease

    def note_refusal(self, refusal: Refusal) -> None:
        """Note why the caller was refused: it has nothing, whatever others took through this object."""
        home = self.here()
        if (take := self._of(home)) is None:
            take = self._note(home, None, 0)
        take.refusal = self.last_refusal = refusal

    def forget_refusal(self, home: Leases) -> None:
        """Note that the caller, whose leases are ``home``, asks again: what it was told before counts no more."""
        if (take := self._by.get(id(home.ref))) is not None:
            take.refusal = None

    def refusal(self) -> Refusal | None:
        """Return why the caller's last request was refused, ``None`` if it was not; for a caller who never asked, what
        the one refused last was told.
        """
        if self.last_refusal is None:
            return None
        take = self._by.get(id(self.here().ref)) or self._previous()
        return self.last_refusal if take is None else take.refusal

    def inherit(self, times: int) -> None:
        """Add ``times`` to how often the caller has taken its lease: those of the lost lease that this one replaces."""
        if (take := self._of(self.here())) is not None:
            take.times += times

    def times(self) -> int:
        """Return how often the caller has taken it through this object without giving it back."""
        take = self._of(self.here()) if self._by else None
        return 0 if take is None else take.times

    def count_return(self, lease: Lease) -> bool:
        """Count one re-entry less; return whether it was the last, so that the lease is to be released."""
        take = self._by.get(id(lease.home))  # of who took it, whoever returns it
        if take is not None and take.now is not lease:
            take = None
        # From here on nothing is called, so that a time limit, which strikes at calls, finds all of it done or nothing.
        lease.count -= 1
        if take is not None:
            take.times -= 1
        if self.last is lease and (take is None or take.times <= 0):
            self.last = None
        return lease.count <= 0

    def drop(self, lease: Lease) -> None:
        """Forget ``lease``: it belongs to nobody any more."""
        disown(lease)
        if self.last is lease:
            self.last = None

    def _note(self, home: Leases, lease: Lease | None, times: int) -> _Take:
        noted = self._by[id(home.ref)] = _Take(home.ref, lease, times)
        if len(self._by) >= self._prune_at:
            for key, take in list(self._by.items()):  # in place: meanwhile other threads note what they take
                if take.home() is None:
                    self._by.pop(key, None)
            self._prune_at = 2 * max(len(self._by), PRUNE)
        return noted

    def _of(self, home: Leases) -> _Take | None:
        """Return what the owner of ``home`` has taken through this object and not given back."""
        take = self._by.get(id(home.ref))
        return None if take is None or take.now is None else take

    def _previous(self) -> _Take | None:
        """Return the result of the caller's last request through this object, in an earlier call of its coroutine."""
        before = leases_here().before
        for _ in range(LINEAGE):
            if before is None:
                break
            own = before.permits if self._permits else before
            if (take := self._by.get(id(own.ref))) is not None:
                return take
            before = before.before
        return None


def forget() -> None:
    """Forget what the threads and coroutines of this process hold."""
    global _threads, _tasks
    _threads = threading.local()
    _tasks = weakref.WeakKeyDictionary()


def after_fork() -> None:
    """Forget what the parent's threads and coroutines hold."""
    forget()
