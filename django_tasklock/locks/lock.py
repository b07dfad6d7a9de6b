"""``TaskLock``: acquire, release, extend, with a heartbeat, a re-entry rule and policies.

What it promises: at most one holder per name *while the lease is intact*. What it cannot
promise, nor can any lease: that a process which was paused past its lease notices before
its next step. Guard the row that is worked on (``StateGuard``), and that does not matter.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from types import TracebackType
from typing import ClassVar, Self, cast

from django_tasklock import backends
from django_tasklock.backends import get_backend
from django_tasklock.backends.contract.leases import LeaseStore
from django_tasklock.backends.contract.metrics import TIMED_OUT, clean_kind
from django_tasklock.conf import DEFAULT, Duration, LeaseTime, OnUnavailable, Timeout, get_settings, milliseconds
from django_tasklock.context import Block, ensure_lease_held, lock_block, skip_struck
from django_tasklock.db.transactions import mention_uncommitted
from django_tasklock.exceptions import BackendUnavailable, LockLost, TaskLockAcquireError, TaskLockError
from django_tasklock.host import Task
from django_tasklock.locks import events
from django_tasklock.locks.acquire import atake, take
from django_tasklock.locks.heartbeat import heartbeat, tell_aside
from django_tasklock.locks.holder import holder_json
from django_tasklock.locks.info import busy_error, lock_info
from django_tasklock.locks.lease import GONE, Lease
from django_tasklock.locks.parameters import LockParameters, patience
from django_tasklock.locks.takes import Leases, Refusal, Takes
from django_tasklock.names import Names, clean, clean_all, each_of
from django_tasklock.signals import lock_acquired, lock_released
from django_tasklock.types import AcquireRequest, Busy, Grant, LockInfo, Record, Released, monotonic


def current_lock() -> TaskLock | None:
    """Return the innermost lock whose ``with`` block or decorated function runs here."""
    block = lock_block.get()
    return None if block is None else block.lock()


class Acquirable(ABC):
    """The verbs of a ``TaskLock``, and of whatever else is acquired and released like one.

    It has parameters, which never change, and remembers which caller has taken which lease through it.
    """

    noun = "lock"
    """What this is, for people."""
    innermost: ClassVar[ContextVar[Block | None]] = lock_block
    """Where the innermost block of its kind is noted."""
    limit = 1
    """How many may hold it at once."""
    brings: str | None = None
    """The token that the next ``acquire()`` brings: granted if the lock was kept for it. See ``transfer``."""
    supersedes = ""
    """The token of the lease over which it is granted where it does not wait. See ``transfer``."""
    notes: tuple[str, ...] = ()
    """Names, one or two: ``release()`` takes away the notes (``LockStore.flag``) about them as well."""
    noted: frozenset[str] | None = None
    """About which of them there was one at the release. ``None``: that is not known."""
    task: Task | None = None
    """The task that takes it, for people; by default the one that the host says."""
    kind = ""
    """What it is counted as, ``video:{id}``."""
    on_busy = "skip"
    """The word for what is done if it is busy, to be counted; empty: the caller asks again, and nothing is counted."""
    on_timeout = TIMED_OUT
    """The same of who has waited for it."""
    row = ""
    """The guarded row that is worked on, ``videos.video:42``: for people, beside the lock."""
    _block: Lease | None = None
    _blocks = 0

    def __init__(
        self, name: str, parameters: LockParameters, takes: Takes, on_lost: Callable[[str], object] | None
    ) -> None:
        self.name = name
        self.parameters = parameters
        self._takes = takes
        self._on_lost = on_lost

    # What kind of thing this is

    @abstractmethod
    def _store(self) -> LeaseStore:
        """Return where its leases are kept."""

    @abstractmethod
    def _busy(self, answer: Busy) -> TaskLockAcquireError:
        """Return the error that says who has it."""

    @abstractmethod
    def enter(self) -> Lease:
        """Become the current one; for code that acquires and releases around a body by itself. Return the lease."""

    @abstractmethod
    def leave(self, lease: Lease | None = None) -> None:
        """Undo ``enter``, which returned ``lease``."""

    # The verbs

    def acquire(self, blocking: bool | None = None, blocking_timeout: Duration | None = None) -> bool:
        """Take the lock; True if it is yours now. False: busy, or not free in time.

        With the store down, ``on_unavailable`` decides: True without the lock (``"run"``),
        False (``"skip"``) or ``BackendUnavailable``. Raises ``TaskLockError`` on re-entry,
        unless ``reentrant``.
        """
        wait = self.parameters.patience
        if blocking is not None or blocking_timeout is not None:
            wait = patience(blocking, blocking_timeout, self.name)
        home = self._takes.here()
        if home and self._reenter(home):
            return True
        lease, request = self._begin(home, wait > 0)
        try:
            if wait:
                return self._settle(lease, home, *take(lease.backend, request, wait))
            return self._settle(lease, home, monotonic(), lease.backend.acquire(request))
        except BackendUnavailable as error:
            error.doubt |= wait > 0  # of a place in the queue there is always some
            return self._unavailable(lease, request, error)
        except BaseException:
            self._give_up(lease, request.ttl_ms)
            raise

    async def aacquire(self, blocking: bool | None = None, blocking_timeout: Duration | None = None) -> bool:
        """Do what ``acquire`` does, for coroutines. A cancelled one leaves nothing behind."""
        wait = self.parameters.patience
        if blocking is not None or blocking_timeout is not None:
            wait = patience(blocking, blocking_timeout, self.name)
        home = self._takes.here()
        if home and self._reenter(home):
            return True
        lease, request = self._begin(home, wait > 0)
        try:
            if wait:
                return self._settle(lease, home, *await atake(lease.backend, request, wait))
            return self._settle(lease, home, monotonic(), await lease.backend.aacquire(request))
        except BackendUnavailable as error:
            error.doubt |= wait > 0  # of a place in the queue there is always some
            return self._unavailable(lease, request, error)
        except BaseException:  # a cancelled task had better not await its own clean-up
            self.drop(lease)
            heartbeat.release_later(lease, request.ttl_ms)
            raise

    @property
    def conflict(self) -> TaskLockAcquireError | None:
        """Why the caller's last ``acquire()`` through this object returned False; ``None`` if it did not."""
        refusal = self._takes.refusal()
        return None if refusal is None else refusal.error

    @property
    def met(self) -> Record | None:
        """Who had the lock when the caller's last ``acquire()`` found it busy, where that could be read."""
        refusal = self._takes.refusal()
        return None if refusal is None else refusal.met

    def note_conflict(self, error: TaskLockAcquireError, met: Record | None = None) -> None:
        """Note why the caller was refused, and by whom."""
        self._takes.note_refusal(Refusal(error, met))

    def conflict_error(self) -> TaskLockAcquireError:
        """Return ``conflict``, or an error that says no more than that the lock is busy."""
        return self.conflict or TaskLockAcquireError(f"{self.noun} {self.name!r} is busy", name=self.name)

    def release(self, lease: Lease | None = None) -> Released:
        """Give the lock back, only if it is still yours; what was found, true only for *released*.

        The last of several re-entries releases. With the store down it is released as soon
        as that answers. ``lease``: by default the caller's. Raises ``TaskLockError`` if it was not acquired through
        this object.
        """
        lease = lease or self.mine()
        if not self._takes.count_return(lease):
            return Released.RELEASED
        lost = False
        try:
            lost = bool(lease.lost)
            self.drop(lease)
            if lease.without_lock:
                outcome = Released.GONE
            elif self.notes:
                outcome, self.noted = lease.backend.release_noted(lease, self.notes)
            else:
                outcome = lease.backend.release_held(lease)
        except BackendUnavailable as error:
            outcome = self._later(lease, error)
        except BaseException:
            self._give_up(lease, self.parameters.hold_ms)
            raise
        if self.noun == "lock":
            mention_uncommitted(self.name)
        if outcome is Released.RELEASED and not lost and not lock_released.receivers:
            return outcome
        return events.released(self, lease, outcome, lost)

    async def arelease(self, lease: Lease | None = None) -> Released:
        """Do what ``release`` does, for coroutines. If it is cancelled, the lock is released all the same."""
        lease = lease or self.mine()
        if not self._takes.count_return(lease):
            return Released.RELEASED
        lost = False
        try:
            lost = bool(lease.lost)
            self.drop(lease)
            outcome = Released.GONE if lease.without_lock else await lease.backend.arelease_held(lease)
        except BackendUnavailable as error:
            outcome = self._later(lease, error)
        except BaseException:
            heartbeat.release_later(lease, self.parameters.hold_ms)
            raise
        if outcome is Released.RELEASED and not lost and not lock_released.receivers:
            return outcome
        return events.released(self, lease, outcome, lost)

    def extend(self, timeout: Duration | None = None) -> bool:
        """Start the timeout again from now, with ``timeout`` seconds or its own. False: no longer yours.

        True, as ``acquire()`` said, when run without the lock. Raises ``BackendUnavailable``.
        """
        lease, ttl, hold_ms = self._extending(timeout)
        if lease.without_lock:
            return True
        sent = monotonic()
        done = lease.backend.extend(lease.name, lease.token, ttl, hold_ms)
        return self._extended(lease, sent, ttl, hold_ms, done)

    async def aextend(self, timeout: Duration | None = None) -> bool:
        """Do what ``extend`` does, for coroutines."""
        lease, ttl, hold_ms = self._extending(timeout)
        if lease.without_lock:
            return True
        sent = monotonic()
        done = await lease.backend.aextend(lease.name, lease.token, ttl, hold_ms)
        return self._extended(lease, sent, ttl, hold_ms, done)

    # What its holder may ask: whether it still has it, and whether somebody wants it back

    @property
    def lease(self) -> Lease | None:
        """The caller's lease through this object, as ``Takes.find`` says; ``None``: it has none."""
        return self._takes.find()

    def mine(self) -> Lease:
        """Return ``lease``. Raises ``TaskLockError`` if there is none."""
        lease = self._takes.find()
        if lease is None:
            raise TaskLockError(
                f"{self.noun} {self.name!r} is not held through this object: acquire() it first", name=self.name
            )
        return lease

    @property
    def timeout(self) -> float:
        """The most one holder may hold it, in seconds."""
        return self.parameters.hold_ms / 1000

    @property
    def taken(self) -> bool:
        """Whether there is something to release: held, lost, or run without the lock."""
        return self._takes.find() is not None

    @property
    def held(self) -> bool:
        """Whether it is certainly still yours."""
        lease = self._takes.find()
        return lease is not None and not lease.without_lock and not lease.lost

    @property
    def lost(self) -> bool:
        """Whether the lease is certainly gone although it was not released."""
        lease = self._takes.find()
        return lease is not None and bool(lease.lost)

    @property
    def asked(self) -> bool:
        """Whether somebody asks for it: known since the last heartbeat or ``ensure_held()``."""
        lease = self._takes.find()
        return lease is not None and lease.asked

    def ensure_held(self) -> None:
        """Raise ``LockLost`` if the lock is not certainly yours: call it before a step that must not run twice.

        So it raises where the body runs without the lock (``on_unavailable="run"``), until the lock is taken after
        all. Raises ``ReleaseAsked`` if an operator asks for the lock. It asks the store once a second at most, in a
        coroutine never: see ``aensure_held``. With the store down what is known here decides.
        """
        lease = self.mine()
        heartbeat.ensure_alive()
        if asyncio._get_running_loop() is None and lease.due_to_look():
            with contextlib.suppress(BackendUnavailable):
                _heard(lease, lease.backend.mine(lease.name, lease.token))
        self._judge(lease)

    async def aensure_held(self) -> None:
        """Do what ``ensure_held`` does, for coroutines."""
        lease = self.mine()
        heartbeat.ensure_alive()
        if lease.due_to_look():
            with contextlib.suppress(BackendUnavailable):
                _heard(lease, await lease.backend.amine(lease.name, lease.token))
        self._judge(lease)

    @property
    def fence(self) -> int:
        """A number greater than that of every earlier holder of this name; 0 when run without the lock."""
        return self.mine().fence

    @property
    def token(self) -> str:
        """The proof of ownership. Secret."""
        return self.mine().token

    @property
    def time_left(self) -> float:
        """Seconds until the timeout."""
        return max(0.0, self.mine().until - monotonic())

    # As a block

    def enter_if_free(self) -> bool:
        """Do ``acquire()`` and ``enter()``: a time limit that strikes anywhere in between leaves nothing taken."""
        before = self._takes.times()
        try:
            if self.acquire():
                self.enter()
                return True
        except BaseException:
            if self._takes.times() > before:
                self.struck()
            raise
        return False

    async def aenter_if_free(self) -> bool:
        """Do what ``enter_if_free`` does, for coroutines."""
        before = self._takes.times()
        try:
            if await self.aacquire():
                self.enter()
                return True
        except BaseException:
            if self._takes.times() > before:
                self.struck(later=True)
            raise
        return False

    def __enter__(self) -> Self:
        self.on_busy = "raise"
        try:
            entered = self.enter_if_free()
        finally:
            self.on_busy = Acquirable.on_busy  # that of the next acquire()
        if entered:
            return self
        raise self.conflict_error()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.give_back()

    def give_back(self, lease: Lease | None = None) -> None:
        """Leave the block, and release. ``lease``: the caller's, if it is known already."""
        try:
            if lease is None:
                if self._inherited():
                    return  # a forked child leaves the block of its parent, which still holds the lock
                lease = self._left()
            self.leave(lease)
            self.release(lease)
        except BaseException:
            self.struck()
            raise

    def __del__(self) -> None:
        # Only a time limit that struck as ``__exit__`` was called leaves a block without leaving it.
        lease = self._block
        if self._blocks and lease is not None and not (lease.released or lease.foreign or sys.is_finalizing()):
            heartbeat.release_later(lease, lease.span or self.parameters.hold_ms)

    async def __aenter__(self) -> Self:
        self.on_busy = "raise"
        try:
            entered = await self.aenter_if_free()
        finally:
            self.on_busy = Acquirable.on_busy  # that of the next acquire()
        if entered:
            return self
        raise self.conflict_error()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            lease = self._left()
            self.leave(lease)
            await self.arelease(lease)
        except BaseException:
            self.struck(later=True)
            raise

    def _left(self) -> Lease | None:
        """Return what the caller gives back as it leaves a block: its lease, else the one the block was entered with.

        It has nothing if that was lost, and another one taken and given back inside of the block, or if it is the task
        in which asyncio ends a generator that nobody iterates over any more.
        """
        lease = self._takes.find() or self._entered()
        return None if lease is None or lease.released else lease

    def _entered(self) -> Lease | None:
        """Return the lease the innermost block here was entered with, if it is one of this object."""
        block = self.innermost.get()
        return cast(Lease, block.lease) if block is not None and block.lock() is self else None

    def _inherited(self) -> bool:
        """Tell whether the block that is left was entered by the process that this one was forked from."""
        last = self._takes.last
        return last is not None and last.foreign

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}{' held' if self.held else ''}>"

    # What is given up

    def drop(self, lease: Lease) -> None:
        """Stop renewing ``lease``, which belongs to nobody any more. The store is not told."""
        heartbeat.forget(lease)
        self._takes.drop(lease)

    def struck(self, *, later: bool = False) -> None:
        """Give up what an exception out of a signal handler, a time limit say, has kept from being released.

        ``later``: without waiting for the store.
        """
        lease = self._takes.find()
        if lease is not None and self._takes.count_return(lease):
            self._give_up(lease, lease.span or self.parameters.hold_ms, later)
            block = self.innermost.get()
            if block is not None and block.lease is lease:  # it was struck before it was left
                self.innermost.set(block.around)

    def _give_up(self, lease: Lease, longest: int, later: bool = False) -> None:
        """Release at once what nobody will release later."""
        try:
            self.drop(lease)
        finally:
            if later or lease.without_lock:
                heartbeat.release_later(lease, longest)  # in an outage it takes its time; its lock may be on its way
            else:
                heartbeat.release_now(lease, longest)

    def _later(self, lease: Lease, error: BackendUnavailable) -> Released:
        heartbeat.release_later(lease, lease.span or self.parameters.hold_ms)
        events.unavailable(self.name, error, "release later", self.noun)
        return Released.UNKNOWN

    # An acquisition, from the question to what is made of the answer

    def _reenter(self, home: Leases) -> bool:
        lease = home.get(self.name) if type(self.name) is str else home.around(self.name)
        if lease is None or lease.released or lease.lost:
            return False
        if not self.parameters.reentrant:
            raise TaskLockError(
                f"{self.noun} {self.name!r} is already held by this thread or asyncio task; release it first, "
                "or pass reentrant=True if taking it twice is meant",
                name=self.name,
            )
        self._takes.note_reentry(lease)
        return True

    def _begin(self, home: Leases, waits: bool) -> tuple[Lease, AcquireRequest]:
        if self._takes.last_refusal is not None:
            self._takes.forget_refusal(home)
        parameters = self.parameters
        lease = Lease(self._store(), self.name, parameters.lease_ms, weakref.ref(self), self._on_lost)
        if self.brings is not None:
            lease.token, self.brings = self.brings, None
        holder = holder_json(self.task, self.row, limit=self.limit if self.noun == "limiter" else 0)
        lease.kind = self.kind if parameters.counted else None
        request = AcquireRequest(
            self.name,
            lease.token,
            parameters.ttl,
            parameters.hold_ms,
            holder,
            self.supersedes,
            self.limit,
            lease.kind,
            self.on_timeout if waits else self.on_busy,
            None,
            parameters.lease_ms is None,
        )
        return lease, request

    def _settle(self, lease: Lease, home: Leases, sent: float, answer: Grant | Busy) -> bool:
        if isinstance(answer, Busy):
            self.note_conflict(self._busy(answer), answer.record)
            return False
        lease.granted(answer, sent, self.parameters.hold_ms)
        lease.since = now = monotonic()
        if now >= lease.deadline:
            late = "the store's answer came after the lease was over"
            raise BackendUnavailable(late, name=self.name, down=False)
        self._takes.keep(lease, home)
        if lease.span is not None:
            heartbeat.follow(lease)
        if lock_acquired.receivers:
            events.acquired(self, lease)
        return True

    def _unavailable(self, lease: Lease, request: AcquireRequest, error: BackendUnavailable) -> bool:
        self.drop(lease)
        if error.doubt:  # otherwise there is nothing to undo, however long the outage
            heartbeat.release_later(lease, request.ttl_ms)
        if error.busy is not None:  # which no silence turns into anything else
            self.note_conflict(self._busy(error.busy), error.busy.record)
            return False
        action = self.parameters.on_unavailable
        if action == "run" and not error.down:
            action = "raise"
        events.unavailable(self.name, error, action, self.noun)
        if action == "raise":
            error.name = error.name or self.name
            raise error
        if action == "skip":
            conflict = TaskLockAcquireError(f"{self.noun} {self.name!r} was not taken: {error}", name=self.name)
            conflict.__cause__ = error
            self.note_conflict(conflict)
            return False
        without = Lease(lease.backend, self.name, self.parameters.lease_ms, lease.lock, self._on_lost)
        without.without_lock, without.kind = True, lease.kind
        without.until = monotonic() + self.parameters.hold_ms / 1000
        try:
            self._takes.keep(without, self._takes.here())
            heartbeat.acquire_later(without, request._replace(token=without.token, supersedes="", on_busy=""))
        except BaseException:  # a time limit; nobody would ever give back what is taken for it later
            self.drop(without)
            raise
        return True

    def _extending(self, timeout: Duration | None) -> tuple[Lease, int, int]:
        lease = self.mine()
        hold_ms = self.parameters.hold_ms if timeout is None else milliseconds(timeout, "timeout", name=self.name)
        return lease, hold_ms if lease.span is None else min(lease.span, hold_ms), hold_ms

    def _extended(self, lease: Lease, sent: float, ttl: int, hold_ms: int, done: bool) -> bool:
        if not done:
            if lease.lose("the store no longer knows it"):
                tell_aside([partial(events.lost, lease, lease.lost)])
            return False
        if lease.lost:
            return False
        lease.granted(Grant(lease.fence, ttl), sent, hold_ms)
        if lease.span is not None:
            heartbeat.follow(lease)
        return True

    def _judge(self, lease: Lease) -> None:
        ensure_lease_held(self, lease)
        if lease.without_lock:
            raise LockLost(
                f"{self.noun} {self.name!r} is not held: the store could not be asked, and on_unavailable='run' let"
                " the body begin without it",
                name=self.name,
            )


class TaskLock(Acquirable):
    """A lock by name, held by a thread or an asyncio task. Several may share one object.

    Several names are one lock that has all of them, or none: ``TaskLock("a", "b")``. See docs/several-names.md.

    ``timeout``: the most one holder may have it, seconds. ``lease``: how long it outlives
    a holder that died; renewed until ``timeout``. ``lease=None``: no heartbeat, it lives
    for ``timeout``. ``blocking``, ``blocking_timeout``: what ``acquire()`` does by default
    (seconds; ``None``: no limit). ``reentrant``: whether its own holder may take it again.
    ``on_unavailable``: ``"run"``, ``"raise"`` or ``"skip"``. ``on_lost(reason)`` is called
    from a thread of its own when the lease is lost. ``kind``: what its holds and conflicts are
    counted as, one of a few words such as ``"video:{id}"``.

    Raises ``TaskLockError`` for what cannot work, before anything is stored.
    """

    def __init__(
        self,
        name: str,
        *more: str,
        timeout: Timeout = DEFAULT,
        lease: LeaseTime = DEFAULT,
        blocking: bool | None = None,
        blocking_timeout: Duration | None = None,
        reentrant: bool = False,
        on_unavailable: OnUnavailable | None = None,
        on_lost: Callable[[str], object] | None = None,
        kind: str = "",
    ) -> None:
        prefix = get_settings().KEY_PREFIX
        name = clean_all((name, *more), prefix) if more or isinstance(name, Names) else clean(name, prefix)
        parameters = LockParameters.checked(name, timeout, lease, blocking, blocking_timeout, reentrant, on_unavailable)
        super().__init__(name, parameters, self._new_takes(), on_lost)
        if kind:
            self.kind = clean_kind(kind)

    def _new_takes(self) -> Takes:
        return Takes()

    @property
    def names(self) -> tuple[str, ...]:
        """What is locked: the name, or several, sorted."""
        return each_of(self.name)

    def _store(self) -> LeaseStore:
        store = backends.current or get_backend()
        return store if type(self.name) is str else store.several

    def _busy(self, answer: Busy) -> TaskLockAcquireError:
        return busy_error(answer.name or self.name, answer)

    def enter(self) -> Lease:
        """Become ``current_lock()``; for code that acquires and releases around a body by itself. Return the lease."""
        try:
            lease = self._block = self.mine()
            around = lock_block.get()
            if around is not None and around.lock() is None:  # hardly ever
                around = skip_struck(around)
            lease.entered.append(around)
            self._blocks += 1
            lock_block.set(Block(weakref.ref(self), lease, around))
        except BaseException:  # a time limit may strike anywhere; the caller does not know of the lock yet
            self.struck()
            raise
        return lease

    def leave(self, lease: Lease | None = None) -> None:
        """Undo ``enter``."""
        # Of a block that was entered in another context it is what there is to release, or was inside of the block.
        lease = self._entered() or lease or self._takes.find() or self._block
        if lease is not None and lease.entered:
            self._blocks -= 1
            lock_block.set(lease.entered.pop())  # type: ignore[arg-type]

    def info(self) -> LockInfo | None:
        """Return who has the lock now, whoever that is; of several names who has the first that is taken.

        Raises ``BackendUnavailable``.
        """
        if type(self.name) is str:
            record = get_backend().get(self.name)
        else:
            record = next(filter(None, get_backend().get_all(self.names)), None)
        return None if record is None else lock_info(record)

    async def ainfo(self) -> LockInfo | None:
        """Do what ``info`` does, for coroutines."""
        if type(self.name) is str:
            record = await get_backend().aget(self.name)
        else:
            record = next(filter(None, await get_backend().aget_all(self.names)), None)
        return None if record is None else lock_info(record)

    def locked(self) -> bool:
        """Tell whether anybody has it, or one of its names. Raises ``BackendUnavailable``."""
        if type(self.name) is str:
            return get_backend().get(self.name) is not None
        return any(get_backend().get_all(self.names))


def _heard(lease: Lease, record: Record | None) -> None:
    """Take note of what the store said: who has the lock."""
    if record is None or record.token != lease.token:
        if lease.lose(GONE):  # the heartbeat drops it at its next turn
            tell_aside([partial(events.lost, lease, GONE)])
    elif record.asked and lease.request_release():
        tell_aside([partial(events.release_requested, lease)])
