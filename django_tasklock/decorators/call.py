"""One decorated call: its lock, its claim on a row, and its result if it is skipped."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack, ExitStack
from typing import Any

from django_tasklock.context import ensure_enclosing_held
from django_tasklock.db.connections import LONG, TWICE, Scope
from django_tasklock.db.threads import run_to_end
from django_tasklock.decorators.options import CallOptions
from django_tasklock.decorators.rows import GuardedRow
from django_tasklock.exceptions import (
    BackendUnavailable,
    GuardRejected,
    LockLost,
    ReleaseAsked,
    StaleClaim,
    TaskLockAcquireError,
)
from django_tasklock.guards.claim import Claim, current
from django_tasklock.host import host
from django_tasklock.locks import events
from django_tasklock.locks.lease import Lease
from django_tasklock.locks.lock import Acquirable

logger = logging.getLogger("django_tasklock")


Skipped = dict[str, Any]
"""The result of a call whose body was not run."""


class CallStrategy(ABC):
    """How a call acquires its lock, what it does when that is busy, and how it releases it.

    That depends on what runs the call, so the ``Host`` chooses it (``Host.strategy_for``).
    """

    def __init__(self, options: CallOptions) -> None:
        self.options = options

    @abstractmethod
    def take(self) -> Skipped | None:
        """Acquire the lock and return ``None``; or return the result of a call whose body is not run."""

    @abstractmethod
    async def atake(self) -> Skipped | None:
        """Do what ``take`` does, for coroutines."""

    def await_row(self, error: GuardRejected) -> None:
        """Postpone a call whose row does not exist, by an exception. Returns where a call cannot be postponed."""

    def row_locked(self, error: GuardRejected) -> None:
        """Do what ``on_conflict`` says if another transaction has locked the row. Returns if the call is skipped."""
        if self.options.on_conflict != "skip":
            raise error

    def leave(self, error: BaseException | None, lease: Lease) -> None:
        """Release ``lease``. ``error``: the exception that ended the call."""
        self.options.lock.leave_and_release(lease)

    async def aleave(self, error: BaseException | None) -> None:
        """Do what ``leave`` does, for coroutines."""
        await self.options.lock.__aexit__(None, None, None)


class PlainCall(CallStrategy):
    """A call outside of any task queue: there is no message to postpone."""

    def take(self) -> Skipped | None:
        """Acquire the lock, or skip the call, or raise."""
        self.options.lock.on_busy = action_when_busy(self.options)
        return None if self.options.lock.acquire() else skip_or_raise(self.options)

    async def atake(self) -> Skipped | None:
        """Do what ``take`` does, for coroutines."""
        self.options.lock.on_busy = action_when_busy(self.options)
        return None if await self.options.lock.aacquire() else skip_or_raise(self.options)


class Call:
    """One call of a decorated function: a lock, a claim on a row, a scope of database connections."""

    def __init__(self, options: CallOptions, strategy: CallStrategy) -> None:
        self.options = options
        self.strategy = strategy
        self.lock = options.lock
        self.long = self.lock.parameters.hold_ms > LONG * 1000
        """Whether its body may run for hours, so that it should not hold connections that it does not use."""
        self.skipped: Skipped | None = None
        """The result of the call, if its body is not run."""
        self._lease: Lease | None = None
        self._closing: Closing | None = None
        if options.row is not None:
            self.lock.row = str(options.row)

    def enter(self, stack: ExitStack) -> bool:
        """Acquire the lock and claim the row; ``stack`` gives both back. Return False if the call is skipped."""
        scope = Scope.begin(stack, self.options.release_connections, long=self.long)
        stack.push(self._leave)  # first: an exception from a signal handler may come right after the lock is acquired
        self.skipped = self.strategy.take()
        if self.skipped is not None:
            return False
        self._lease = lease = self.lock.enter()
        if self.options.row is not None:
            self._closing = Closing(self._new_claim(self.options.row, lease))
            for _ in range(TWICE):
                stack.push(self._closing)
            try:
                self._closing.begin()
                self._closing.claim.claim()
            except GuardRejected as error:
                return self._rejected(error)
        if scope.everything or scope.opened:
            scope.close_idle()
        self._begin_body()
        return True

    async def aenter(self, stack: AsyncExitStack) -> bool:
        """Do what ``enter`` does, for coroutines."""
        scope = Scope.begin(stack, self.options.release_connections, long=self.long)
        stack.push_async_exit(self._aleave)
        self.skipped = await self.strategy.atake()
        if self.skipped is not None:
            return False
        lease = self.lock.enter()
        if self.options.row is not None:
            self._closing = Closing(self._new_claim(self.options.row, lease))
            for _ in range(TWICE):
                stack.push_async_exit(self._closing.later)
            try:
                self._closing.begin()
                await run_to_end(self._closing.claim.claim)
            except GuardRejected as error:
                return self._rejected(error)
        await scope.aclose_idle()
        self._begin_body()
        return True

    def abandon(self, *, later: bool = False) -> None:
        """Give up the lease that an exception from a signal handler has kept the stack from releasing."""
        self.lock.abandon(later=later)

    def _begin_body(self) -> None:
        """Check the enclosing locks right before the body: the call may have waited for long inside of them."""
        ensure_enclosing_held()
        if self._closing is not None:
            self._closing.begun = True

    def _new_claim(self, row: GuardedRow, lease: Lease) -> Claim:
        claim = Claim(row.model, row.key, row.guard, lease.token, row.lookup)
        claim.releases, claim.long = self.options.release_connections, self.long
        return claim

    def _leave(self, exc_type: Any, error: BaseException | None, trace: Any) -> None:
        lease = self._lease
        if lease is None or lease.released or lease.successor is not None:
            lease = self.lock.lease  # a successor that the body has acquired, if any
        if lease is not None and not lease.inherited:  # a forked child leaves the body of its parent
            self.strategy.leave(error, lease)

    async def _aleave(self, exc_type: Any, error: BaseException | None, trace: Any) -> None:
        if self.lock.taken:
            await self.strategy.aleave(error)

    def _rejected(self, error: GuardRejected) -> bool:
        if error.reason == "missing":
            self.strategy.await_row(error)
        if error.reason == "row_locked":
            self.strategy.row_locked(error)
        elif self.options.on_conflict in ("raise", "wait"):
            raise error
        state = error.state
        self.skipped = {
            "status": "skipped",
            "reason": error.reason,
            "name": self.lock.name,
            "state": state if state is None or isinstance(state, str | int | float | bool) else str(state),
        }
        return False


def action_when_busy(options: CallOptions) -> str:
    """Return the action of ``skip_or_raise``: ``"skip"`` or ``"raise"``."""
    return "skip" if options.on_conflict == "skip" else "raise"


def skip_or_raise(options: CallOptions, reason: str = "already_processing") -> Skipped:
    """Skip a call whose lock is busy if its options say so; raise the conflict otherwise."""
    error = options.lock.conflict_error()
    if options.on_conflict == "skip":
        return skip(options.lock, error, reason)
    events.conflict(error, "raise")
    raise error


def skip(lock: Acquirable, error: TaskLockAcquireError, reason: str = "already_processing") -> Skipped:
    """Report that a call is skipped because of ``error``, and return its result. ``reason``: where the store is up."""
    events.conflict(error, "skip")
    down = isinstance(error.__cause__, BackendUnavailable)
    return {
        "status": "skipped",
        "reason": "lock_unavailable" if down else reason,
        "name": lock.name,
        "holder": error.holder,
        "held_for": error.held_for,
        "time_left": error.time_left,
    }


class Closing:
    """Makes the claim the current one while the body runs, and writes to the row how the body ended.

    The stack calls it ``TWICE``: if an exception from a signal handler ends the first call, the second does the rest.
    """

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.begun = False
        """Whether the body has begun. If not, the row stays claimable."""
        self._over = False
        self._process = os.getpid()
        self._before = current.get()

    def begin(self) -> None:
        """Make the claim the current one."""
        current.set(self.claim)

    def __call__(self, exc_type: Any, error: BaseException | None, trace: Any) -> None:
        current.set(self._before)
        if self._due:
            self._close(error)

    async def later(self, exc_type: Any, error: BaseException | None, trace: Any) -> None:
        """End the claim of a coroutine: a thread writes to the row."""
        current.set(self._before)
        if self._due:
            await run_to_end(self._close, error)

    @property
    def _due(self) -> bool:
        if self._over or not self.claim.taken:
            return False
        return self._process == os.getpid()  # a forked child leaves the body of its parent

    def _close(self, error: BaseException | None) -> None:
        self.claim.ended = False  # the body may have ended it in a transaction that was rolled back
        try:
            close(self.claim, error, self.begun)
        finally:
            self._over = self.claim.ended


def close(claim: Claim, error: BaseException | None, begun: bool = True) -> None:
    """Write to the row how the body ended."""
    if error is None:
        claim.finish()
    else:
        close_failed(claim, error, begun)


def close_failed(claim: Claim, error: BaseException, begun: bool = True) -> None:
    """Write to the row how a failed body ended. The caller sees the body's own error, whatever happens here.

    The row is claimable again if the body will be retried, was stopped from outside (``SystemExit``, ``ReleaseAsked``,
    a cancelled coroutine), or lost its lock before it had ``begun``. Otherwise it is failed.
    """
    try:
        if isinstance(error, StaleClaim) and error.name == claim.name:
            return  # another claim has the row: that is already logged, signalled and counted
        stopped = _stopped_by_request(error) or (isinstance(error, LockLost) and not begun)
        if stopped or not isinstance(error, Exception) or host().will_retry(error):
            claim.give_back()
        else:
            claim.fail()
    except StaleClaim as stale:
        error.add_note(f"its row was not marked: {stale}")
    except Exception as trouble:
        logger.exception("%s %r: could not be marked as failed", claim.model._meta.label, claim.pk)
        error.add_note(f"its row was not marked: {trouble}")


def _stopped_by_request(error: BaseException) -> bool:
    """Tell whether a request to release has ended the body. In an exception group nothing else may have."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(ReleaseAsked)[1] is None
    return isinstance(error, ReleaseAsked)
