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
from functools import partial
from types import FrameType, TracebackType
from typing import Any, Self

from django_tasklock import context
from django_tasklock.backends import get_backend
from django_tasklock.backends.contract.stores import LeaseStore
from django_tasklock.conf import DEFAULT, Duration, LeaseTime, OnUnavailable, Timeout, get_settings, milliseconds
from django_tasklock.context import Block, ensure_lease_held
from django_tasklock.counts import TIMED_OUT, clean_kind
from django_tasklock.db.transactions import warn_uncommitted
from django_tasklock.exceptions import BackendUnavailable, LockLost, TaskLockAcquireError, TaskLockError
from django_tasklock.host import Task
from django_tasklock.locks import events
from django_tasklock.locks.acquire import aacquire_within, acquire_within
from django_tasklock.locks.dead import free_dead, is_freeable
from django_tasklock.locks.heartbeat import heartbeat, report_in_thread, report_losses
from django_tasklock.locks.holder import alive, holder_json, running_task
from django_tasklock.locks.info import busy_error, lock_info
from django_tasklock.locks.lease import GONE, Lease, Refusal
from django_tasklock.locks.parameters import LockParameters, seconds_to_wait
from django_tasklock.locks.taken import answer_of, leases_here, note, note_release
from django_tasklock.names import Names, clean, clean_all, each_of, is_tenant_known, tenant_awaited, with_tenant
from django_tasklock.types import AcquireRequest, Busy, Ending, Grant, LockInfo, Record, Released, monotonic


def current_lock() -> TaskLock:
    """Return the lock of the innermost ``with`` block or decorated function that runs here.

    Raises ``TaskLockError`` where there is none, as in a thread that the body has started.
    """
    lock: TaskLock = context.current("lock", "call this inside a block of a lock or a function decorated with one")
    return lock


MOST_ENDED = 32
"""The most leases that are over, and not released, which an object keeps: their takers can still release them."""
_GENERATOR = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


def generator_in(frame: FrameType) -> int:
    """Return the id of ``frame`` if a generator runs in it, otherwise 0. It is the same at each step of the generator.

    The block of a generator ends where that is closed: in another thread or asyncio task, for example by
    ``asyncio.wait_for()`` before Python 3.12, at the end of an event loop, or by the garbage collector.
    """
    return id(frame) if frame.f_code.co_flags & _GENERATOR else 0


class Acquirable(ABC):
    """Take, give back and extend leases, for a ``TaskLock`` and a ``ConcurrencyLimiter``.

    Its parameters never change. ``take`` returns a lease, which its taker gives back; ``acquire`` and ``release`` leave
    it with this object, which finds it again by what the running code was answered.
    """

    noun = "lock"
    """The noun in messages."""
    limit = 1
    """The number of holders at once."""

    def __init__(
        self,
        name: str,
        parameters: LockParameters,
        on_lost: Callable[[str], object] | None,
        kind: str,
        task: Task | None,
        row: str,
    ) -> None:
        self.name = name
        self.parameters = parameters
        self.kind = kind
        """The kind that its holds and conflicts are counted as, ``video:{id}``."""
        self.task = task
        """The task recorded in the holder; by default the one that runs here."""
        self.row = row
        """The guarded row recorded in the holder, ``videos.video:42``."""
        self._on_lost = on_lost
        self._acquired: list[Lease] = []  # by acquire(), and not released
        self._blocks: dict[Block, Lease] = {}  # entered by ``with``, and not left
        self._latest: weakref.ref[Lease] | None = None  # of any taker

    # What kind of thing this is

    @abstractmethod
    def _store(self) -> LeaseStore:
        """Return the store of its leases."""

    @abstractmethod
    def _busy(self, answer: Busy) -> TaskLockAcquireError:
        """Return the error that names the holder."""

    # The verbs, with the lease in the taker's hand

    def take(self, wait: float | None = None, *, supersedes: str = "", action: str = "skip") -> Lease | Refusal:
        """Acquire the lock and return the lease; return a ``Refusal`` if it is busy, or was not free in time.

        ``wait``: the seconds to wait; 0: do not wait; ``None``: as the lock's options say. ``supersedes``: the token of
        a lease that this one may replace where it does not wait. ``action``: what a conflict is counted as; empty: the
        caller asks again, so it is not counted. With the store down ``on_unavailable`` decides: return a lease without
        the lock (``"run"``), a ``Refusal`` (``"skip"``), or raise ``BackendUnavailable``. Raises ``TaskLockError`` on
        re-entry, unless ``reentrant``.
        """
        if (again := self._reenter()) is not None:
            return again
        wait = self.parameters.max_wait if wait is None else wait
        lease, request = self._begin(wait > 0, supersedes, action)
        try:
            if wait:
                return self._settle(lease, *acquire_within(lease.backend, request, wait, self._free_dead))
            sent, answer = monotonic(), lease.backend.acquire(request)
            while isinstance(answer, Busy) and self._free_dead(answer):
                sent, answer = monotonic(), lease.backend.acquire(request)
            return self._settle(lease, sent, answer)
        except BackendUnavailable as error:
            error.doubt |= wait > 0  # a place in the queue may have been left behind
            return self._unavailable(lease, request, error)
        except BaseException:  # a time limit
            heartbeat.release_later(lease, request.ttl_ms)
            raise

    async def atake(self, wait: float | None = None, *, supersedes: str = "", action: str = "skip") -> Lease | Refusal:
        """Do what ``take`` does, for coroutines. If it is cancelled, the lock is not held."""
        if (again := self._reenter()) is not None:
            return again
        wait = self.parameters.max_wait if wait is None else wait
        lease, request = self._begin(wait > 0, supersedes, action)
        try:
            if wait:
                return self._settle(lease, *await aacquire_within(lease.backend, request, wait, self._free_dead))
            sent, answer = monotonic(), await lease.backend.aacquire(request)
            while isinstance(answer, Busy) and await lease.backend.in_thread(self._free_dead, answer):
                sent, answer = monotonic(), await lease.backend.aacquire(request)
            return self._settle(lease, sent, answer)
        except BackendUnavailable as error:
            error.doubt |= wait > 0  # a place in the queue may have been left behind
            return self._unavailable(lease, request, error)
        except BaseException:  # a cancelled task does not await its own clean-up
            heartbeat.release_later(lease, request.ttl_ms)
            raise

    def give(self, lease: Lease) -> Released:
        """Release ``lease`` if it is still held. Return the outcome, which is true only for *released*.

        After re-entries only the last release releases it. With the store down it is released as soon as the store
        answers.
        """
        return self._give(lease, lambda: Ending(lease.backend.release(lease.name, lease.token))).outcome

    def _give(self, lease: Lease, release: Callable[[], Ending]) -> Ending:
        if (outcome := self._stop(lease)) is not None:
            return Ending(outcome)
        lost = bool(lease.lost)
        try:
            ending = Ending(Released.GONE) if lease.without_lock else release()
        except BackendUnavailable as error:
            ending = Ending(self._release_later(lease, error))
        except BaseException:  # a time limit
            heartbeat.release_later(lease, lease.lease_ms or self.parameters.hold_ms)
            raise
        if self.noun == "lock":
            warn_uncommitted(self.name)
        return ending._replace(outcome=self._released(lease, ending.outcome, lost))

    async def agive(self, lease: Lease) -> Released:
        """Do what ``give`` does, for coroutines. If it is cancelled, the lock is still released."""
        if (outcome := self._stop(lease)) is not None:
            return outcome
        lost = bool(lease.lost)
        try:
            outcome = Released.GONE if lease.without_lock else await lease.backend.arelease(lease.name, lease.token)
        except BackendUnavailable as error:
            outcome = self._release_later(lease, error)
        except BaseException:
            heartbeat.release_later(lease, lease.lease_ms or self.parameters.hold_ms)
            raise
        return self._released(lease, outcome, lost)

    def _stop(self, lease: Lease) -> Released | None:
        """Stop renewing ``lease``. Return the outcome if the store is not to be asked: it was taken more often."""
        if lease.released or lease.inherited:  # a forked child leaves the lease to its parent
            return Released.GONE
        note_release(self, lease)
        lease.count -= 1
        if lease.count > 0:
            return Released.RELEASED
        heartbeat.forget(lease)
        return None

    @contextlib.contextmanager
    def block(self, lease: Lease) -> Iterator[None]:
        """Make ``lease`` the one of ``current_lock()`` or ``current_limiter()``. It acquires and releases nothing."""
        block = Block(self, lease)
        try:
            yield
        finally:
            block.leave()

    # The verbs that find the caller's lease

    def acquire(self, blocking: bool | None = None, blocking_timeout: Duration | None = None) -> bool:
        """Acquire the lock and return True; return False if it is busy, or was not free in time.

        With the store down, ``on_unavailable`` decides: return True without the lock (``"run"``), return False
        (``"skip"``), or raise ``BackendUnavailable``. Raises ``TaskLockError`` on re-entry, unless ``reentrant``. The
        lock is renewed for as long as this object exists.
        """
        return self._keep(self.take(self._seconds(blocking, blocking_timeout)))

    async def aacquire(self, blocking: bool | None = None, blocking_timeout: Duration | None = None) -> bool:
        """Do what ``acquire`` does, for coroutines. If it is cancelled, the lock is not held."""
        return self._keep(await self.atake(self._seconds(blocking, blocking_timeout)))

    def release(self) -> Released:
        """Release the lock if the caller still has it. Return the outcome, which is true only for *released*.

        After re-entries only the last release releases it. With the store down it is released as soon as the store
        answers. Raises ``TaskLockError`` if the caller has not acquired it through this object.
        """
        return self.give(self._unkeep())

    async def arelease(self) -> Released:
        """Do what ``release`` does, for coroutines. If it is cancelled, the lock is still released."""
        return await self.agive(self._unkeep())

    def _seconds(self, blocking: bool | None, blocking_timeout: Duration | None) -> float:
        own = self.parameters.max_wait
        if blocking_timeout is None and (blocking is None or (blocking and own)):
            return own
        return seconds_to_wait(blocking, blocking_timeout, self.name)

    def _keep(self, answer: Lease | Refusal) -> bool:
        if isinstance(answer, Refusal):
            return False
        for old in self._acquired[:-MOST_ENDED]:  # in place: other threads add and remove theirs meanwhile
            if not (old.released or old.lost):
                break
            with contextlib.suppress(ValueError):
                self._acquired.remove(old)
        self._acquired.append(answer)
        return True

    def _unkeep(self) -> Lease:
        lease = self.require_lease()
        with contextlib.suppress(ValueError):
            self._acquired.remove(lease)
        return lease

    def _released(self, lease: Lease, outcome: Released, lost: bool) -> Released:
        if outcome is Released.RELEASED and not lost:
            events.count_release(lease)
        return events.released(self, lease, outcome, lost)

    def extend(self, timeout: Duration | None = None, lease: Lease | None = None) -> bool:
        """Start the timeout again from now, with ``timeout`` seconds or its own. Return False if the lock is lost.

        For a body that runs without the lock it returns True, as ``acquire()`` did. ``lease``: by default the caller's.
        Raises ``BackendUnavailable``.
        """
        lease, ttl, hold_ms = self._extending(timeout, lease)
        if lease.without_lock:
            return True
        sent = monotonic()
        done = lease.backend.extend(lease.name, lease.token, ttl, hold_ms)
        return self._extended(lease, sent, ttl, hold_ms, done)

    async def aextend(self, timeout: Duration | None = None) -> bool:
        """Do what ``extend`` does, for coroutines."""
        lease, ttl, hold_ms = self._extending(timeout, None)
        if lease.without_lock:
            return True
        sent = monotonic()
        done = await lease.backend.aextend(lease.name, lease.token, ttl, hold_ms)
        return self._extended(lease, sent, ttl, hold_ms, done)

    # What the holder may ask: whether the lock is still held, and whether its release was requested

    @property
    def lease(self) -> Lease | None:
        """The lease that the running code has through this object; ``None``: it has none.

        Code that has never asked through the object has the latest lease of a lock, and no permit of a limiter.
        """
        answer = answer_of(self)
        if answer is not None:
            return answer.held
        lease = None if self.noun == "limiter" or self._latest is None else self._latest()
        return None if lease is None or lease.released or lease.inherited else lease

    def require_lease(self) -> Lease:
        """Return the caller's lease. Raises ``TaskLockError`` if there is none."""
        lease = self.lease
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
        return self.lease is not None

    @property
    def held(self) -> bool:
        """Whether the caller certainly still has it."""
        lease = self.lease
        return lease is not None and not lease.without_lock and not lease.lost

    @property
    def lost(self) -> bool:
        """Whether the lease is certainly gone although it was not released."""
        lease = self.lease
        return lease is not None and bool(lease.lost)

    @property
    def asked(self) -> bool:
        """Whether its release was requested, as of the last heartbeat or ``ensure_held()``."""
        lease = self.lease
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

    def enter(self, lease: Lease, generator: int = 0) -> None:
        """Enter a block with ``lease``; for code that is a context manager itself.

        ``generator``: the generator whose block this is. Its steps, and its end, may run in several threads or tasks.
        """
        self._blocks[Block(self, lease, generator)] = lease

    def leave_block(self, generator: int = 0) -> Lease | None:
        """Leave the innermost block here, or that of ``generator``, and return the lease that it was entered with.

        ``None``: no block was entered here.
        """
        entered = list(self._blocks.items())[::-1]
        if generator:
            block = next((block for block, _ in entered if block.generator == generator), None)
        else:
            block = next((one for one in context.blocks() if one.lock() is self and not one.generator), None)
        if block is None:  # it was entered in another context, or by the process that this one was forked from
            mine = self.lease
            block = next((block for block, lease in entered if lease is mine or lease.inherited), None)
        if block is None:
            return None
        block.leave()
        return self._blocks.pop(block, None)

    def __enter__(self) -> Self:
        answer = self.take(action="raise")
        if isinstance(answer, Refusal):
            raise self.block_refused(answer)
        self.enter(answer, generator_in(sys._getframe(1)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.give(self.leave_block(generator_in(sys._getframe(1))) or self.require_lease())

    async def __aenter__(self) -> Self:
        answer = await self.atake(action="raise")
        if isinstance(answer, Refusal):
            raise self.block_refused(answer)
        self.enter(answer, generator_in(sys._getframe(1)))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.agive(self.leave_block(generator_in(sys._getframe(1))) or self.require_lease())

    def block_refused(self, refusal: Refusal) -> TaskLockAcquireError:
        """Return the error for a block that is not entered. It says how to wait if the block did not."""
        error = refusal.error
        if not self.parameters.max_wait and error.__cause__ is None:
            error.args = (f"{error}; the block did not wait for it: blocking_timeout= says for how many seconds",)
        return error

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}{' held' if self.held else ''}>"

    # An acquisition, from the request to what follows from the answer

    def held_here(self) -> Lease | None:
        """Return the lease by which the running thread or task holds its names already, through whichever object.

        Raises ``TaskLockError`` where it holds only some of them: they could not be released while it waits for others.
        """
        names, found = set(each_of(self.name)), None
        for lease in leases_here(names):
            if lease.backend.noun != self.noun or not (common := names.intersection(each_of(lease.name))):
                continue
            if len(common) < len(names):
                one = min(common)
                raise TaskLockError(
                    f"lock {self.name!r}: {one!r} is already held by this thread or asyncio task, and not all of the"
                    " others; take all names at once, or release that one first",
                    name=one,
                )
            found = found or lease
        return found

    def _reenter(self) -> Lease | None:
        lease = self.held_here()
        if lease is None:
            return None
        if not self.parameters.reentrant:
            raise TaskLockError(
                f"{self.noun} {self.name!r} is already held by this thread or asyncio task; release it first, "
                "or pass reentrant=True if taking it twice is meant",
                name=self.name,
            )
        lease.count += 1
        return self._taken(lease)

    def _taken(self, lease: Lease) -> Lease:
        self._latest = weakref.ref(lease)
        note(self, lease)
        return lease

    def _refused(self, error: TaskLockAcquireError, record: Record | None = None) -> Refusal:
        answer = answer_of(self)
        if answer is None or answer.held is None or not answer.held.taker.here():  # its own may be lost
            note(self, None)
        return Refusal(error, record)

    def _begin(self, waits: bool, supersedes: str, action: str) -> tuple[Lease, AcquireRequest]:
        parameters = self.parameters
        lease = Lease(self._store(), self.name, parameters.lease_ms, weakref.ref(self), self._on_lost)
        caller = sys._getframe(2)
        while caller.f_back is not None and caller.f_globals.get("__name__", "").startswith("django_tasklock."):
            caller = caller.f_back
        lease.acquired_in = caller.f_code.co_filename, caller.f_lineno
        lease.counted_as, lease.on_busy = self.kind, TIMED_OUT if waits and action else action
        limit = self.limit if self.noun == "limiter" else 0
        request = AcquireRequest(
            self.name,
            lease.token,
            parameters.ttl,
            parameters.hold_ms,
            holder_json(self.task, self.row, limit=limit, kind=self.kind),
            supersedes,
            self.limit,
            whole=parameters.lease_ms is None,
        )
        return lease, request

    def _free_dead(self, busy: Busy) -> bool:
        """Free it if its holder's process is dead, and return whether it was. Several at once are freed one by one.

        The lock of an earlier delivery of the message that runs here is left to that message, which counts the deaths.
        """
        record = busy.record
        if record is None or alive(record.holder) is not False:
            return False
        task, store = self.task or running_task(), get_backend()
        is_ours = task is not None and (task.name, task.id) == (record.holder.task, record.holder.task_id)
        if self.noun == "limiter":
            return (is_ours or is_freeable(record)) and free_dead(store.permits, record, self.name)
        return not is_ours and is_freeable(record) and free_dead(store, record, self.name)

    def _settle(self, lease: Lease, sent: float, answer: Grant | Busy, waited: float | None = None) -> Lease | Refusal:
        events.count_expired(lease, answer)
        if isinstance(answer, Busy):
            events.count_busy(lease)
            return self._refused(self._busy(answer), answer.record)
        lease.granted(answer, sent, self.parameters.hold_ms)
        if monotonic() >= lease.deadline:
            late = "the store's answer came after the lease was over"
            raise BackendUnavailable(late, name=self.name, down=False)
        events.count_grant(lease, waited)
        if lease.lease_ms is not None:
            heartbeat.follow(lease)
        events.acquired(self, lease)
        return self._taken(lease)

    def _unavailable(self, lease: Lease, request: AcquireRequest, error: BackendUnavailable) -> Lease | Refusal:
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
        heartbeat.acquire_later(without, request._replace(token=without.token, supersedes=""))
        return self._taken(without)

    def _release_later(self, lease: Lease, error: BackendUnavailable) -> Released:
        heartbeat.release_later(lease, lease.lease_ms or self.parameters.hold_ms)
        events.unavailable(self.name, error, "release later", self.noun)
        return Released.UNKNOWN

    def _extending(self, timeout: Duration | None, lease: Lease | None) -> tuple[Lease, int, int]:
        lease = lease or self.require_lease()
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

    ``TaskLock("a", "b")`` acquires all of its names, or none. See docs/locks.md.

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
        self._bare = "" if is_tenant_known() else name  # which has its tenant when that can be asked
        name = name if self._bare else with_tenant(name)
        parameters = LockParameters.checked(name, timeout, lease, blocking, blocking_timeout, reentrant, on_unavailable)
        whole = "" if self._bare else name
        super().__init__(whole, parameters, on_lost, clean_kind(kind) if kind else "", task, row)

    _name: str

    @property
    def name(self) -> str:
        """What is locked, with the tenant.

        An object that a coroutine makes gets its tenant at the first ``async with``, ``aacquire()`` or ``ainfo()``, or
        outside of coroutines. Raises ``TaskLockError`` before that.
        """
        if not self._name:
            self._name = with_tenant(self._bare)
        return self._name

    @name.setter
    def name(self, name: str) -> None:
        self._name = name

    @property
    def lease(self) -> Lease | None:
        """The lease that the running code has through this object; ``None``: it has none.

        Code that has never asked through the object has the latest lease.
        """
        return super().lease if self._name else None

    async def _complete(self) -> None:
        """Give it its tenant. Raises ``TaskLockError`` if that is another one than before."""
        if not self._bare:
            return
        async with tenant_awaited():
            name = with_tenant(self._bare)
        if name != (self._name or name):
            raise TaskLockError(
                f"this object is lock {self._name!r}, and is used as {name!r}: make one for each tenant", name=name
            )
        self._name = name

    async def atake(self, wait: float | None = None, *, supersedes: str = "", action: str = "skip") -> Lease | Refusal:
        """Do what ``take`` does, for coroutines. If it is cancelled, the lock is not held."""
        await self._complete()
        return await super().atake(wait, supersedes=supersedes, action=action)

    @property
    def names(self) -> tuple[str, ...]:
        """The locked names, sorted."""
        return each_of(self.name)

    def give_and_mark(self, lease: Lease, mark: str, ttl: int, *, clear: bool) -> Ending:
        """Do what ``give`` does, and what ``LockStore.release_and_mark`` does beside, if the store is asked."""
        store: Any = lease.backend  # of locks, by one name or several
        return self._give(lease, lambda: store.release_and_mark(lease.name, lease.token, mark, ttl, clear=clear))

    def _store(self) -> LeaseStore:
        store = get_backend()
        return store if type(self.name) is str else store.several

    def _busy(self, answer: Busy) -> TaskLockAcquireError:
        return busy_error(answer.name or self.name, answer)

    def info(self) -> LockInfo | None:
        """Return what is known of the current holder; with several names, of the holder of the first that is held.

        Raises ``BackendUnavailable``.
        """
        record = next(filter(None, map(get_backend().get, self.names)), None)
        return None if record is None else lock_info(record)

    async def ainfo(self) -> LockInfo | None:
        """Do what ``info`` does, for coroutines."""
        await self._complete()
        for name in self.names:
            record = await get_backend().aget(name)
            if record is not None:
                return lock_info(record)
        return None

    def locked(self) -> bool:
        """Tell whether the lock, or one of its names, is held by anyone. Raises ``BackendUnavailable``."""
        return any(get_backend().get(name) is not None for name in self.names)

    def __repr__(self) -> str:
        return super().__repr__() if self._name else f"<{type(self).__name__} {self._bare!r}>"


def _update(lease: Lease, record: Record | None) -> None:
    """Update the lease from the lock's record in the store."""
    if record is None or record.token != lease.token:
        if lease.mark_lost(GONE):  # the heartbeat forgets it at its next round
            report_losses([(lease, GONE)])
    elif record.asked and lease.mark_asked():
        report_in_thread([partial(events.release_requested, lease)])
