"""Ownership: threads, asyncio tasks and single calls as owners of leases, and what each acquired through one object."""

from __future__ import annotations

import asyncio
import sys
import threading
import weakref
from contextvars import ContextVar

from asgiref.sync import AsyncToSync, SyncToAsync

from django_tasklock.exceptions import TaskLockError
from django_tasklock.locks import lease as leases
from django_tasklock.locks.lease import Lease, Refusal
from django_tasklock.names import each_of
from django_tasklock.process import check_process

MOST_PREDECESSORS = 8
"""Calls of one coroutine that an owner remembers."""
PRUNE = 50
"""Owners of one object, from which on those that have ended are forgotten."""


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
    check_process()
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


class _Acquisition:
    """What one owner has got through the object: a lease, acquired ``count`` times, or a refusal."""

    __slots__ = ("count", "lease", "owner", "refusal")

    def __init__(self, owner: weakref.ref[Owner], lease: Lease | None, count: int) -> None:
        self.owner = owner
        self.lease = lease
        self.count = count
        self.refusal: Refusal | None = None

    @property
    def current(self) -> Lease | None:
        """The lease that the owner has now: the last successor of those that were lost."""
        lease = None if self.lease is None else self.lease.current
        return None if self.count <= 0 or lease is None or lease.released else lease


class Acquisitions:
    """What owners have acquired through one object, so that each finds its own lease.

    ``permits``: the object is a limiter. Its permits are apart from locks of the same name, and only their owner finds
    them: one release too many would release another owner's permit. ``owner``: used in place of the calling thread or
    task, such as the whole process.
    """

    __slots__ = ("_by_owner", "_fixed_owner", "_permits", "_prune_at", "last", "last_refusal")

    def __init__(self, *, permits: bool = False, owner: Owner | None = None) -> None:
        self._by_owner: dict[int, _Acquisition] = {}  # by the id of the reference that the entry keeps alive
        self._fixed_owner = owner
        self._permits = permits
        self._prune_at = PRUNE
        self.last: Lease | None = None
        """The lease that was acquired last, by any owner."""
        self.last_refusal: Refusal | None = None
        """The refusal of the owner that was refused last."""

    def owner(self) -> Owner:
        """Return the caller, with everything it has acquired through any object."""
        if self._fixed_owner is not None:
            return self._fixed_owner
        owner = current_owner()
        return owner.permits if self._permits else owner

    def find(self) -> Lease | None:
        """Return the caller's lease; for a caller that never asked through this object, the lease acquired last."""
        owner = self.owner()
        found = self._by_owner.get(id(owner.ref)) or self._of_predecessor()
        lease = (None if self._permits else self.last) if found is None else found.current
        return None if lease is None or lease.released or lease.generation != leases.generation else lease

    def add(self, lease: Lease, owner: Owner) -> None:
        """Record that ``owner`` has acquired ``lease``."""
        self.last = lease
        lease.owner = owner.ref  # first: if an exception from a signal handler comes here, disown() still works
        if type(lease.name) is str:
            owner[lease.name] = lease
        else:  # each of its names: their joined text may be the name of another lock
            owner.update(dict.fromkeys(each_of(lease.name), lease))
        before = self._by_owner.get(id(owner.ref))
        if before is not None and before.lease is not None and not before.lease.released:
            before.lease.successor = lease  # that one is lost
        self._add(owner, lease, 1)

    def add_reentry(self, lease: Lease) -> None:
        """Record that the caller has acquired ``lease``, which it holds, once more."""
        owner = self.owner()
        found = self._held_by(owner)
        if found is not None and found.lease is lease:
            found.count += 1
        else:
            self._add(owner, lease, 1)
        lease.count += 1
        self.last = lease

    def add_refusal(self, refusal: Refusal) -> None:
        """Record that the caller was refused: it has no lease, whatever others have acquired through this object."""
        owner = self.owner()
        if (found := self._held_by(owner)) is None:
            found = self._add(owner, None, 0)
        found.refusal = self.last_refusal = refusal

    def clear_refusal(self, owner: Owner) -> None:
        """Forget an earlier refusal of ``owner``, which asks again."""
        if (found := self._by_owner.get(id(owner.ref))) is not None:
            found.refusal = None

    def refusal(self) -> Refusal | None:
        """Return why the caller's last request was refused, ``None`` if it was not.

        For a caller that never asked through this object: the last refusal of any owner.
        """
        if self.last_refusal is None:
            return None
        found = self._by_owner.get(id(self.owner().ref)) or self._of_predecessor()
        return self.last_refusal if found is None else found.refusal

    def add_count(self, count: int) -> None:
        """Add ``count`` acquisitions of the lost lease that the caller's lease replaces."""
        if (found := self._held_by(self.owner())) is not None:
            found.count += count

    def count(self) -> int:
        """Return how often the caller has acquired it through this object and not released it."""
        found = self._held_by(self.owner()) if self._by_owner else None
        return 0 if found is None else found.count

    def count_release(self, lease: Lease) -> bool:
        """Count one release. Return whether it was the last one, so that the lease is to be released in the store."""
        found = self._by_owner.get(id(lease.owner))  # the owner that acquired it; another one may release it
        if found is not None and found.current is not lease:
            found = None
        # No calls from here on. Exceptions from signal handlers are raised at calls, so all of it is done, or nothing.
        lease.count -= 1
        if found is not None:
            found.count -= 1
        if self.last is lease and (found is None or found.count <= 0):
            self.last = None
        return lease.count <= 0

    def discard(self, lease: Lease) -> None:
        """Forget ``lease``: it has no owner any more."""
        disown(lease)
        if self.last is lease:
            self.last = None

    def _add(self, owner: Owner, lease: Lease | None, count: int) -> _Acquisition:
        added = self._by_owner[id(owner.ref)] = _Acquisition(owner.ref, lease, count)
        if len(self._by_owner) >= self._prune_at:
            for key, one in list(self._by_owner.items()):  # in place: other threads add to it meanwhile
                if one.owner() is None:
                    self._by_owner.pop(key, None)
            self._prune_at = 2 * max(len(self._by_owner), PRUNE)
        return added

    def _held_by(self, owner: Owner) -> _Acquisition | None:
        """Return what ``owner`` has acquired through this object and not released."""
        found = self._by_owner.get(id(owner.ref))
        return None if found is None or found.current is None else found

    def _of_predecessor(self) -> _Acquisition | None:
        """Return what the caller's coroutine was answered in an earlier call, through this object."""
        owner = current_owner().predecessor
        for _ in range(MOST_PREDECESSORS):
            if owner is None:
                break
            own = owner.permits if self._permits else owner
            if (found := self._by_owner.get(id(own.ref))) is not None:
                return found
            owner = owner.predecessor
        return None


def forget() -> None:
    """Forget the leases of all threads and coroutines of this process."""
    global _threads, _tasks
    _threads = threading.local()
    _tasks = weakref.WeakKeyDictionary()


def after_fork() -> None:
    """Forget the leases of the parent's threads and coroutines."""
    forget()
