"""``TaskLock``: acquire, release, extend, with a heartbeat, a re-entry rule and policies.

It promises at most one holder per name *while the lease is intact*. Like any lease, it cannot
promise that a process which was paused past its lease notices that before its next step.
Guard the row that is being processed (``StateGuard``), and a late write changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import sys
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial
from types import FrameType, TracebackType
from typing import ClassVar, Self, cast

from django_tasklock.backends import get_backend
from django_tasklock.backends.contract.stores import LeaseStore
from django_tasklock.conf import DEFAULT, Duration, LeaseTime, OnUnavailable, Timeout, get_settings, milliseconds
from django_tasklock.context import Block, ensure_lease_held, lock_block, none_current, skip_abandoned
from django_tasklock.counts import TIMED_OUT, clean_kind
from django_tasklock.db.transactions import warn_uncommitted
from django_tasklock.exceptions import BackendUnavailable, LockLost, TaskLockAcquireError, TaskLockError
from django_tasklock.host import Task
from django_tasklock.locks import events
from django_tasklock.locks.acquire import aacquire_within, acquire_within
from django_tasklock.locks.heartbeat import heartbeat, report_in_thread, report_losses
from django_tasklock.locks.holder import holder_json
from django_tasklock.locks.info import busy_error, lock_info
from django_tasklock.locks.lease import GONE, Lease, Refusal
from django_tasklock.locks.ownership import Acquisitions, Owner
from django_tasklock.locks.parameters import LockParameters, seconds_to_wait
from django_tasklock.names import Names, clean, clean_all, each_of, with_tenant
from django_tasklock.signals import lock_acquired, lock_released
from django_tasklock.types import AcquireRequest, Busy, Grant, LockInfo, Record, Released, monotonic


def current_lock() -> TaskLock:
    """Return the lock of the innermost ``with`` block or decorated function that runs here.

    Raises ``TaskLockError`` where there is none, as in a thread that the body has started.
    """
    block = skip_abandoned(lock_block.get())
    lock: TaskLock | None = None if block is None else block.lock()
    if lock is None:
        raise none_current("lock", "call this inside a block of a lock or a function decorated with one")
    return lock


_GENERATOR = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


def _generator_in(frame: FrameType) -> int:
    """Return the id of ``frame`` if a generator runs in it, otherwise 0. It is the same at each step of the generator.

    The block of a generator ends where that is closed: in another thread or asyncio task, for example by
    ``asyncio.wait_for()`` before Python 3.12, at the end of an event loop, or by the garbage collector.
    """
    return id(frame) if frame.f_code.co_flags & _GENERATOR else 0


class Acquirable(ABC):
    """Acquire, release and extend, for a ``TaskLock`` and a ``ConcurrencyLimiter``.

    Its parameters never change. It remembers which caller has acquired which lease through it.
    """

    noun = "lock"
    """The noun in messages."""
    current_block: ClassVar[ContextVar[Block | None]] = lock_block
    """The innermost block of a lock, or of a limiter."""
    limit = 1
    """The number of holders at once."""
    reserved_token: str | None = None
    """The token of the next ``acquire()``, which is granted if the lock was kept for that token. See ``transfer``."""
    supersedes = ""
    """The token of a lease that ``acquire()`` may replace where it does not wait. See ``transfer``."""
    flags_to_clear: tuple[str, ...] = ()
    """One or two names whose flags (``LockStore.set_flag``) ``release()`` deletes as well."""
    cleared_flags: frozenset[str] | None = None
    """Those of the names that had a flag at the release; ``None``: unknown."""
    task: Task | None = None
    """The task recorded in the holder; by default the one that runs here."""
    kind = ""
    """The kind that its holds and conflicts are counted as, ``video:{id}``."""
    on_busy = "skip"
    """The action that a conflict is counted as; empty: the caller asks again, so it is not counted."""
    on_timeout = TIMED_OUT
    """The action that a wait without success is counted as; empty: it is not counted."""
    row = ""
    """The guarded row recorded in the holder, ``videos.video:42``."""
    _block: Lease | None = None  # of the block that was entered last
    _blocks = 0  # entered and not left

    def __init__(
        self, name: str, parameters: LockParameters, acquisitions: Acquisitions, on_lost: Callable[[str], object] | None
    ) -> None:
        self.name = name
        self.parameters = parameters
        self._acquisitions = acquisitions
        self._on_lost = on_lost
        self._of_generators: dict[int, list[Lease]] = {}  # of their open blocks, by _generator_in()

    # What kind of thing this is

    @abstractmethod
    def _store(self) -> LeaseStore:
        """Return the store of its leases."""

    @abstractmethod
    def _busy(self, answer: Busy) -> TaskLockAcquireError:
        """Return the error that names the holder."""

    @abstractmethod
    def enter(self, lease: Lease | None = None) -> Lease:
        """Enter a block with ``lease``, by default the caller's, and return it; for code that acquires by itself."""

    @abstractmethod
    def leave(self, lease: Lease | None = None) -> None:
        """Leave the block for which ``enter`` returned ``lease``."""

    # The verbs, with the lease in the taker's hand

    def take(self, wait: float | None = None, *, supersedes: str = "", action: str = "skip") -> Lease | Refusal:
        """Acquire the lock and return the lease; return a ``Refusal`` if it is busy, or was not free in time.

        ``wait``: the seconds to wait; 0: do not wait; ``None``: as the lock's options say. ``supersedes``: the token of
        a lease that this one may replace where it does not wait. ``action``: what a conflict is counted as; empty: the
        caller asks again, so it is not counted. With the store down ``on_unavailable`` decides: return a lease without
        the lock (``"run"``), a ``Refusal`` (``"skip"``), or raise ``BackendUnavailable``. Raises ``TaskLockError`` on
        re-entry, unless ``reentrant``.
        """
        wait = self.parameters.max_wait if wait is None else wait
        owner = self._acquisitions.owner()
        if owner and (again := self._reenter(owner)) is not None:
            return again
        lease, request = self._begin(owner, wait > 0, supersedes, action)
        try:
            if wait:
                return self._settle(lease, owner, *acquire_within(lease.backend, request, wait))
            return self._settle(lease, owner, monotonic(), lease.backend.acquire(request))
        except BackendUnavailable as error:
            error.doubt |= wait > 0  # a place in the queue may have been left behind
            return self._unavailable(lease, request, error)
        except BaseException:
            self._give_up(lease, request.ttl_ms)
            raise

    async def atake(self, wait: float | None = None, *, supersedes: str = "", action: str = "skip") -> Lease | Refusal:
        """Do what ``take`` does, for coroutines. If it is cancelled, the lock is not held."""
        wait = self.parameters.max_wait if wait is None else wait
        owner = self._acquisitions.owner()
        if owner and (again := self._reenter(owner)) is not None:
            return again
        lease, request = self._begin(owner, wait > 0, supersedes, action)
        try:
            if wait:
                return self._settle(lease, owner, *await aacquire_within(lease.backend, request, wait))
            return self._settle(lease, owner, monotonic(), await lease.backend.aacquire(request))
        except BackendUnavailable as error:
            error.doubt |= wait > 0  # a place in the queue may have been left behind
            return self._unavailable(lease, request, error)
        except BaseException:  # a cancelled task does not await its own clean-up
            self.drop(lease)
            heartbeat.release_later(lease, request.ttl_ms)
            raise

    def give(self, lease: Lease) -> Released:
        """Release ``lease`` if it is still held. Return the outcome, which is true only for *released*.

        After re-entries only the last release releases it. With the store down it is released as soon as the store
        answers.
        """
        return self.give_and_clear(lease, ())[0]

    def give_and_clear(self, lease: Lease, names: tuple[str, ...]) -> tuple[Released, frozenset[str] | None]:
        """Do what ``give`` does, and delete the flags (``LockStore.set_flag``) of one or two names in the same trip.

        Also return those of ``names`` that had a flag; ``None``: unknown.
        """
        flagged: frozenset[str] | None = None
        if not self._acquisitions.count_release(lease):
            return Released.RELEASED, flagged
        lost = False
        try:
            lost = bool(lease.lost)
            self.drop(lease)
            if lease.without_lock:
                outcome = Released.GONE
            elif names:
                outcome, flagged = lease.backend.release_and_clear(lease.name, lease.token, names)
            else:
                outcome = lease.backend.release(lease.name, lease.token)
        except BackendUnavailable as error:
            outcome = self._release_later(lease, error)
        except BaseException:
            self._give_up(lease, self.parameters.hold_ms)
            raise
        if self.noun == "lock":
            warn_uncommitted(self.name)
        return self._released(lease, outcome, lost), flagged

    async def agive(self, lease: Lease) -> Released:
        """Do what ``give`` does, for coroutines. If it is cancelled, the lock is still released."""
        if not self._acquisitions.count_release(lease):
            return Released.RELEASED
        lost = False
        try:
            lost = bool(lease.lost)
            self.drop(lease)
            outcome = Released.GONE if lease.without_lock else await lease.backend.arelease(lease.name, lease.token)
        except BackendUnavailable as error:
            outcome = self._release_later(lease, error)
        except BaseException:
            heartbeat.release_later(lease, self.parameters.hold_ms)
            raise
        return self._released(lease, outcome, lost)

    @contextlib.contextmanager
    def block(self, lease: Lease) -> Iterator[None]:
        """Make ``lease`` the one of ``current_lock()`` or ``current_limiter()``. It acquires and releases nothing."""
        self.enter(lease)
        try:
            yield
        finally:
            self.leave(lease)

    # The verbs that find the caller's lease

    def acquire(self, blocking: bool | None = None, blocking_timeout: Duration | None = None) -> bool:
        """Acquire the lock and return True; return False if it is busy, or was not free in time.

        With the store down, ``on_unavailable`` decides: return True without the lock (``"run"``), return False
        (``"skip"``), or raise ``BackendUnavailable``. Raises ``TaskLockError`` on re-entry, unless ``reentrant``.
        """
        wait = self._seconds(blocking, blocking_timeout)
        return isinstance(self.take(wait, supersedes=self.supersedes, action=self._action(wait)), Lease)

    async def aacquire(self, blocking: bool | None = None, blocking_timeout: Duration | None = None) -> bool:
        """Do what ``acquire`` does, for coroutines. If it is cancelled, the lock is not held."""
        wait = self._seconds(blocking, blocking_timeout)
        return isinstance(await self.atake(wait, supersedes=self.supersedes, action=self._action(wait)), Lease)

    def _seconds(self, blocking: bool | None, blocking_timeout: Duration | None) -> float:
        if blocking is None and blocking_timeout is None:
            return self.parameters.max_wait
        return seconds_to_wait(blocking, blocking_timeout, self.name)

    def _action(self, wait: float) -> str:
        return self.on_timeout if wait else self.on_busy

    @property
    def conflict(self) -> TaskLockAcquireError | None:
        """The error of the caller's last ``acquire()`` through this object; ``None`` if that returned True."""
        refusal = self._acquisitions.refusal()
        return None if refusal is None else refusal.error

    @property
    def busy_record(self) -> Record | None:
        """The record of the holder that refused the caller's last ``acquire()``; ``None`` if it could not be read."""
        refusal = self._acquisitions.refusal()
        return None if refusal is None else refusal.record

    def record_conflict(self, error: TaskLockAcquireError, record: Record | None = None) -> None:
        """Record why the caller was refused, and the record of the holder."""
        self._acquisitions.add_refusal(Refusal(error, record))

    def conflict_error(self) -> TaskLockAcquireError:
        """Return ``conflict``, or an error that only says that the lock is busy."""
        return self.conflict or TaskLockAcquireError(f"{self.noun} {self.name!r} is busy", name=self.name)

    def release(self, lease: Lease | None = None) -> Released:
        """Release the lock if the caller still has it. Return the outcome, which is true only for *released*.

        After re-entries only the last release releases it. With the store down it is released as soon as the store
        answers. ``lease``: by default the caller's. Raises ``TaskLockError`` if the caller has not acquired it through
        this object.
        """
        outcome, flagged = self.give_and_clear(lease or self.require_lease(), self.flags_to_clear)
        if flagged is not None:
            self.cleared_flags = flagged
        return outcome

    async def arelease(self, lease: Lease | None = None) -> Released:
        """Do what ``release`` does, for coroutines. If it is cancelled, the lock is still released."""
        return await self.agive(lease or self.require_lease())

    def _released(self, lease: Lease, outcome: Released, lost: bool) -> Released:
        if outcome is Released.RELEASED and not lost:
            events.count_release(lease)
            if not lock_released.receivers:
                return outcome
        return events.released(self, lease, outcome, lost)

    def extend(self, timeout: Duration | None = None) -> bool:
        """Start the timeout again from now, with ``timeout`` seconds or its own. Return False if the lock is lost.

        For a body that runs without the lock it returns True, as ``acquire()`` did. Raises ``BackendUnavailable``.
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

    # What the holder may ask: whether the lock is still held, and whether its release was requested

    @property
    def lease(self) -> Lease | None:
        """The caller's lease through this object, see ``Acquisitions.find``; ``None``: it has none."""
        return self._acquisitions.find()

    def require_lease(self) -> Lease:
        """Return the caller's lease. Raises ``TaskLockError`` if there is none."""
        lease = self._acquisitions.find()
        if lease is None:
            raise TaskLockError(
                f"{self.noun} {self.name!r} is not held through this object: acquire() it first", name=self.name
            )
        return lease

    @property
    def timeout(self) -> float:
        """The longest that one holder may hold it, in seconds."""
        return self.parameters.hold_ms / 1000

    @property
    def taken(self) -> bool:
        """Whether the caller has something to release: a lease that is held or lost, or a body without the lock."""
        return self._acquisitions.find() is not None

    @property
    def held(self) -> bool:
        """Whether the caller certainly still has it."""
        lease = self._acquisitions.find()
        return lease is not None and not lease.without_lock and not lease.lost

    @property
    def lost(self) -> bool:
        """Whether the lease is certainly gone although it was not released."""
        lease = self._acquisitions.find()
        return lease is not None and bool(lease.lost)

    @property
    def asked(self) -> bool:
        """Whether its release was requested, as of the last heartbeat or ``ensure_held()``."""
        lease = self._acquisitions.find()
        return lease is not None and lease.asked

    def ensure_held(self) -> None:
        """Raise ``LockLost`` if the lock is not certainly held. Call it before a step that must not run twice.

        It also raises where the body runs without the lock (``on_unavailable="run"``), until the lock is acquired after
        all. Raises ``ReleaseAsked`` if an operator has requested the release. It asks the store once a second at most,
        and never in a coroutine: see ``aensure_held``. With the store down the local deadline decides.
        """
        lease = self.require_lease()
        heartbeat.ensure_alive()
        if asyncio._get_running_loop() is None and lease.should_check_store():
            with contextlib.suppress(BackendUnavailable):
                _update(lease, lease.backend.get_held(lease.name, lease.token))
        self._ensure_valid(lease)

    async def aensure_held(self) -> None:
        """Do what ``ensure_held`` does, for coroutines."""
        lease = self.require_lease()
        heartbeat.ensure_alive()
        if lease.should_check_store():
            with contextlib.suppress(BackendUnavailable):
                _update(lease, await lease.backend.aget_held(lease.name, lease.token))
        self._ensure_valid(lease)

    @property
    def fence(self) -> int:
        """A number greater than that of every earlier holder of this name; 0 for a body that runs without the lock."""
        return self.require_lease().fence

    @property
    def token(self) -> str:
        """The proof of ownership. Secret."""
        return self.require_lease().token

    @property
    def time_left(self) -> float:
        """Seconds until the timeout."""
        return max(0.0, self.require_lease().until - monotonic())

    # As a block

    def enter_if_free(self, generator: int = 0) -> bool:
        """Run ``acquire()`` and ``enter()``. An exception from a signal handler in between leaves nothing acquired.

        ``generator``: the generator whose block this is. Its steps, and its end, may run in several threads or tasks.
        """
        before = self._acquisitions.count()
        try:
            if self.acquire():
                lease = self.enter()
                if generator:
                    self._of_generators.setdefault(generator, []).append(lease)
                return True
        except BaseException:
            if self._acquisitions.count() > before:
                self.abandon()
            raise
        return False

    async def aenter_if_free(self, generator: int = 0) -> bool:
        """Do what ``enter_if_free`` does, for coroutines."""
        before = self._acquisitions.count()
        try:
            if await self.aacquire():
                lease = self.enter()
                if generator:
                    self._of_generators.setdefault(generator, []).append(lease)
                return True
        except BaseException:
            if self._acquisitions.count() > before:
                self.abandon(later=True)
            raise
        return False

    def __enter__(self) -> Self:
        self.on_busy = "raise"
        try:
            entered = self.enter_if_free(_generator_in(sys._getframe(1)))
        finally:
            self.on_busy = Acquirable.on_busy
        if entered:
            return self
        raise self.conflict_error()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave_and_release(generator=_generator_in(sys._getframe(1)))

    def leave_and_release(self, lease: Lease | None = None, generator: int = 0) -> None:
        """Leave the block and release the lock.

        ``lease``: the caller's, where that is known already. ``generator``: the generator whose block this is.
        """
        try:
            if generator:
                lease = self._lease_of_generator(generator)
            if self._inherited() if lease is None else lease.inherited:
                return  # a forked child leaves the block of its parent, which still holds the lock
            lease = lease or self._lease_to_release()
            self.leave(lease)
            self.release(lease)
        except BaseException:
            self.abandon(lease)
            raise

    def __del__(self) -> None:
        # A block is not left if an exception from a signal handler, such as a time limit, comes as __exit__ is called.
        lease = self._block
        if self._blocks and lease is not None and not (lease.released or lease.inherited or sys.is_finalizing()):
            heartbeat.release_later(lease, lease.lease_ms or self.parameters.hold_ms)

    async def __aenter__(self) -> Self:
        self.on_busy = "raise"
        try:
            entered = await self.aenter_if_free(_generator_in(sys._getframe(1)))
        finally:
            self.on_busy = Acquirable.on_busy
        if entered:
            return self
        raise self.conflict_error()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lease = None
        try:
            if generator := _generator_in(sys._getframe(1)):
                lease = self._lease_of_generator(generator)
                if lease is not None and lease.inherited:
                    return
            lease = lease or self._lease_to_release()
            self.leave(lease)
            await self.arelease(lease)
        except BaseException:
            self.abandon(lease, later=True)
            raise

    def _lease_of_generator(self, generator: int) -> Lease | None:
        """Return the lease of the block that ``generator`` leaves, whichever thread or task entered it.

        ``None`` if it was released inside of the block.
        """
        leases = self._of_generators.get(generator)
        if not leases:
            return None
        lease = leases.pop().current
        if not leases:
            del self._of_generators[generator]
        return None if lease.released else lease

    def _lease_to_release(self) -> Lease | None:
        """Return the caller's lease, or else the one that the block was entered with.

        ``None`` if that was lost and its successor released inside of the block, or in the task in which asyncio closes
        an abandoned asynchronous generator.
        """
        lease = self._acquisitions.find() or self._entered()
        return None if lease is None or lease.released else lease

    def _entered(self, lease: Lease | None = None) -> Lease | None:
        """Return the lease that the innermost block here was entered with, if that block is one of this object.

        ``lease``: only if it has the same owner as this one.
        """
        block = self.current_block.get()
        if block is None or block.lock() is not self:
            return None
        entered = cast(Lease, block.lease)
        return entered if lease is None or entered.owner is lease.owner else None

    def _inherited(self) -> bool:
        """Tell whether the block was entered by the process that this one was forked from."""
        last = self._acquisitions.last
        return last is not None and last.inherited

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}{' held' if self.held else ''}>"

    # Leases that are given up

    def drop(self, lease: Lease) -> None:
        """Stop renewing ``lease`` and take it away from its owner. Nothing is sent to the store."""
        heartbeat.forget(lease)
        self._acquisitions.discard(lease)

    def abandon(self, lease: Lease | None = None, *, later: bool = False) -> None:
        """Give up the lease that an exception from a signal handler, such as a time limit, kept from being released.

        ``lease``: by default the caller's. ``later``: do not wait for the store.
        """
        lease = lease or self._acquisitions.find()
        if lease is not None and not lease.released and self._acquisitions.count_release(lease):
            self._give_up(lease, lease.lease_ms or self.parameters.hold_ms, later)
            block = self.current_block.get()
            if block is not None and block.lease is lease:  # the block has not been left yet
                self.current_block.set(block.around)

    def _give_up(self, lease: Lease, longest: int, later: bool = False) -> None:
        """Release a lease that has no owner any more. ``longest``: milliseconds after which it has expired."""
        try:
            self.drop(lease)
        finally:
            if later or lease.without_lock:
                heartbeat.release_later(lease, longest)  # without_lock: the heartbeat may be acquiring it just now
            else:
                heartbeat.release_now(lease, longest)

    def _release_later(self, lease: Lease, error: BackendUnavailable) -> Released:
        heartbeat.release_later(lease, lease.lease_ms or self.parameters.hold_ms)
        events.unavailable(self.name, error, "release later", self.noun)
        return Released.UNKNOWN

    # An acquisition, from the request to what follows from the answer

    def _reenter(self, owner: Owner) -> Lease | None:
        lease = owner.get(self.name) if type(self.name) is str else owner.find_covering(self.name)
        if lease is None or lease.released or lease.lost:
            return None
        if not self.parameters.reentrant:
            raise TaskLockError(
                f"{self.noun} {self.name!r} is already held by this thread or asyncio task; release it first, "
                "or pass reentrant=True if taking it twice is meant",
                name=self.name,
            )
        self._acquisitions.add_reentry(lease)
        return lease

    def _begin(self, owner: Owner, waits: bool, supersedes: str, action: str) -> tuple[Lease, AcquireRequest]:
        if self._acquisitions.last_refusal is not None:
            self._acquisitions.clear_refusal(owner)
        parameters = self.parameters
        lease = Lease(self._store(), self.name, parameters.lease_ms, weakref.ref(self), self._on_lost)
        if self.reserved_token is not None:
            lease.token, self.reserved_token = self.reserved_token, None
        caller = sys._getframe(2)
        while caller.f_back is not None and caller.f_globals.get("__name__", "").startswith("django_tasklock."):
            caller = caller.f_back
        lease.acquired_in = caller.f_code.co_filename, caller.f_lineno
        limit = self.limit if self.noun == "limiter" else 0
        holder = holder_json(self.task, self.row, limit=limit, kind=self.kind)
        lease.counted_as, lease.on_busy = self.kind, TIMED_OUT if waits and action else action
        request = AcquireRequest(
            self.name,
            lease.token,
            parameters.ttl,
            parameters.hold_ms,
            holder,
            supersedes,
            self.limit,
            whole=parameters.lease_ms is None,
        )
        return lease, request

    def _settle(
        self, lease: Lease, owner: Owner, sent: float, answer: Grant | Busy, waited: float | None = None
    ) -> Lease | Refusal:
        events.count_expired(lease, answer)
        if isinstance(answer, Busy):
            events.count_busy(lease)
            return self._refused(self._busy(answer), answer.record)
        lease.granted(answer, sent, self.parameters.hold_ms)
        if monotonic() >= lease.deadline:
            late = "the store's answer came after the lease was over"
            raise BackendUnavailable(late, name=self.name, down=False)
        events.count_grant(lease, waited)
        self._acquisitions.add(lease, owner)
        if lease.lease_ms is not None:
            heartbeat.follow(lease)
        if lock_acquired.receivers:
            events.acquired(self, lease)
        return lease

    def _unavailable(self, lease: Lease, request: AcquireRequest, error: BackendUnavailable) -> Lease | Refusal:
        self.drop(lease)
        if error.doubt:  # otherwise the store has done nothing that is to be undone
            heartbeat.release_later(lease, request.ttl_ms)
        if error.busy is not None:  # the store said so before it stopped answering, so the policy does not apply
            events.count_busy(lease)
            return self._refused(self._busy(error.busy), error.busy.record)
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
            return self._refused(conflict)
        without = Lease(lease.backend, self.name, self.parameters.lease_ms, lease.lock, self._on_lost)
        without.without_lock, without.counted_as = True, lease.counted_as
        without.until = monotonic() + self.parameters.hold_ms / 1000
        try:
            self._acquisitions.add(without, self._acquisitions.owner())
            heartbeat.acquire_later(without, request._replace(token=without.token, supersedes=""))
        except BaseException:  # a time limit: a lock that is acquired for it later would never be released
            self.drop(without)
            raise
        return without

    def _refused(self, error: TaskLockAcquireError, record: Record | None = None) -> Refusal:
        self.record_conflict(error, record)
        return Refusal(error, record)

    def _extending(self, timeout: Duration | None) -> tuple[Lease, int, int]:
        lease = self.require_lease()
        hold_ms = self.parameters.hold_ms if timeout is None else milliseconds(timeout, "timeout", name=self.name)
        return lease, hold_ms if lease.lease_ms is None else min(lease.lease_ms, hold_ms), hold_ms

    def _extended(self, lease: Lease, sent: float, ttl: int, hold_ms: int, done: bool) -> bool:
        if not done:
            if lease.mark_lost("the store no longer knows it"):
                report_losses([(lease, lease.lost)])
            return False
        if lease.lost:
            return False
        lease.granted(Grant(lease.fence, ttl), sent, hold_ms)
        if lease.lease_ms is not None:
            heartbeat.follow(lease)
        return True

    def _ensure_valid(self, lease: Lease) -> None:
        ensure_lease_held(self, lease)
        if lease.without_lock:
            raise LockLost(
                f"{self.noun} {self.name!r} is not held: the store could not be asked, and on_unavailable='run' let"
                " the body begin without it",
                name=self.name,
            )


class TaskLock(Acquirable):
    """A lock by name, held by a thread or an asyncio task. Threads and tasks may share one object.

    ``TaskLock("a", "b")`` acquires all of its names, or none. See docs/several-names.md.

    ``timeout``: the longest that one holder may have it, in seconds. ``lease``: how long it outlives a holder that has
    died, in seconds; the heartbeat renews it until ``timeout``. ``lease=None``: no heartbeat, the lock expires after
    ``timeout``. ``blocking``, ``blocking_timeout``: whether ``acquire()`` waits, and for how many seconds (``None``: no
    limit), where a call does not say. ``reentrant``: whether its holder may acquire it again. ``on_unavailable``: with
    the store down ``"raise"`` ``BackendUnavailable``, ``"run"`` without the lock, or ``"skip"``; ``None``: as the
    setting ``ON_UNAVAILABLE`` says, which decorated functions, tasks and the plain functions follow.
    ``on_lost(reason)``: called in a thread of its own when the lease is lost, before this is logged or counted.
    ``kind``: the kind that its holds and conflicts are counted as in the metrics, one of a few such as
    ``"video:{id}"``. ``task``: the task recorded in the holder, by default the one that runs here; ``row``: the guarded
    row that is recorded there, ``videos.video:42``.

    Raises ``TaskLockError`` for options that cannot work, before anything is stored.
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
        on_unavailable: OnUnavailable | None = "raise",
        on_lost: Callable[[str], object] | None = None,
        kind: str = "",
        task: Task | None = None,
        row: str = "",
    ) -> None:
        prefix = get_settings().prefix
        name = clean_all((name, *more), prefix) if more or isinstance(name, Names) else clean(name, prefix)
        name = with_tenant(name)
        parameters = LockParameters.checked(name, timeout, lease, blocking, blocking_timeout, reentrant, on_unavailable)
        super().__init__(name, parameters, self._new_acquisitions(), on_lost)
        if kind:
            self.kind = clean_kind(kind)
        self.task, self.row = task, row

    def _new_acquisitions(self) -> Acquisitions:
        return Acquisitions()

    @property
    def names(self) -> tuple[str, ...]:
        """The locked names, sorted."""
        return each_of(self.name)

    def _store(self) -> LeaseStore:
        store = get_backend()
        return store if type(self.name) is str else store.several

    def _busy(self, answer: Busy) -> TaskLockAcquireError:
        return busy_error(answer.name or self.name, answer)

    def enter(self, lease: Lease | None = None) -> Lease:
        """Become ``current_lock()`` with ``lease``, by default the caller's; for code that acquires by itself."""
        try:
            lease = self._block = lease or self.require_lease()
            around = lock_block.get()
            if around is not None and around.lock() is None:  # rare
                around = skip_abandoned(around)
            lease.entered.append(around)
            self._blocks += 1
            lock_block.set(Block(weakref.ref(self), lease, around))
        except BaseException:  # from a signal handler: the caller does not know yet that it has the lock
            self.abandon()
            raise
        return lease

    def leave(self, lease: Lease | None = None) -> None:
        """Undo ``enter``."""
        # The block may have been entered in another context: then it is that of the lease to be released.
        lease = self._entered(lease) or lease or self._acquisitions.find() or self._block
        if lease is not None and lease.entered:
            self._blocks -= 1
            around, block = lease.entered.pop(), lock_block.get()
            while block is not None and block.lease is not lease:
                block = block.around
            if block is not None:  # otherwise the blocks of this context are others
                lock_block.set(around)  # type: ignore[arg-type]

    def info(self) -> LockInfo | None:
        """Return what is known of the current holder; with several names, of the holder of the first that is held.

        Raises ``BackendUnavailable``.
        """
        record = next(filter(None, map(get_backend().get, self.names)), None)
        return None if record is None else lock_info(record)

    async def ainfo(self) -> LockInfo | None:
        """Do what ``info`` does, for coroutines."""
        for name in self.names:
            record = await get_backend().aget(name)
            if record is not None:
                return lock_info(record)
        return None

    def locked(self) -> bool:
        """Tell whether the lock, or one of its names, is held by anyone. Raises ``BackendUnavailable``."""
        return any(get_backend().get(name) is not None for name in self.names)


def _update(lease: Lease, record: Record | None) -> None:
    """Update the lease from the lock's record in the store."""
    if record is None or record.token != lease.token:
        if lease.mark_lost(GONE):  # the heartbeat forgets it at its next round
            report_losses([(lease, GONE)])
    elif record.asked and lease.mark_asked():
        report_in_thread([partial(events.release_requested, lease)])
