"""One decorated call: its lock, its claim on a row, and its result if it is skipped."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any, Self

from django.db import InterfaceError, InternalError, OperationalError

from django_tasklock.context import Block, ensure_enclosing_held
from django_tasklock.db.connections import Scope
from django_tasklock.db.reconnect import PATIENCE
from django_tasklock.db.threads import run_to_end
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
from django_tasklock.locks.lease import Lease, Refusal
from django_tasklock.locks.lock import Acquirable

logger = logging.getLogger("django_tasklock")


Skipped = dict[str, Any]
"""The result of a call whose body was not run."""


HINDRANCES = (BackendUnavailable, LockLost, OperationalError, InterfaceError, InternalError)
"""The errors of stores and databases that keep a body from beginning, whatever it is. They may go away."""

LONG = 3600.0
"""A body that may run for longer than this, in seconds, holds no unused database connections. The default timeout."""


class Call:
    """One call of a decorated function or a task: its lock, its row and its options.

    ``wait``: how many seconds ``on_conflict="wait"`` waits. ``busy``: why it is skipped if its lock is busy.
    """

    def __init__(
        self,
        lock: Acquirable,
        on_conflict: str,
        row: GuardedRow | None = None,
        *,
        wait: float = 0.0,
        queue_limit: int | None = None,
        release_connections: bool | None = None,
        busy: str = "already_processing",
    ) -> None:
        self.lock = lock
        self.on_conflict = on_conflict
        self.row = row
        self.wait = wait
        self.queue_limit = queue_limit
        if release_connections is None:
            release_connections = lock.parameters.hold_ms > LONG * 1000
        self.release_connections = release_connections
        """Whether the body should hold no database connections that it does not use."""
        self.busy = busy
        self.begun = False
        """Whether the body has begun."""

    def skip_or_raise(self, error: TaskLockAcquireError) -> Skipped:
        """Skip the call because of ``error`` if its options say so; raise it otherwise."""
        if self.on_conflict == "skip":
            return self.skip(error)
        events.conflict(error, "raise")
        raise error

    def skip(self, error: TaskLockAcquireError) -> Skipped:
        """Report that the call is skipped because of ``error``, and return its result."""
        events.conflict(error, "skip")
        down = isinstance(error.__cause__, BackendUnavailable)
        return {
            "status": "skipped",
            "reason": "lock_unavailable" if down else self.busy,
            "name": self.lock.name,
            "holder": error.holder,
            "held_for": error.held_for,
            "time_left": error.time_left,
        }


class Caller:
    """Who makes a call, ``with scope, lease, claim: body``: what follows if its lock is busy, and how it ends.

    This one is outside of any task queue. A task queue joins in by a subclass of it, with which ``Host.join`` answers,
    and by nothing else.
    """

    def __init__(self, call: Call) -> None:
        self.call = call
        self.wait = call.wait if call.on_conflict == "wait" else 0.0
        """How many seconds the call waits for its lock before ``on_busy`` decides."""
        self.mark = ""
        """What the row keeps of a body that was stopped from outside, so that it is found if nobody runs it again."""
        self.action = "skip" if call.on_conflict == "skip" else "raise"
        """What a busy lock is counted as; empty: ``on_busy`` asks once more, and that is counted."""
        self.closing_patience = PATIENCE
        """For how many seconds the write is tried that closes the row."""

    def run(self, body: Callable[[], Any]) -> Any:
        """Run ``body`` and return its result, or the result of a call that is skipped."""
        call = self.call
        with Scope(call.release_connections) as scope:
            try:
                taken = self.before() or call.lock.take(self.wait, action=self.action)
                if isinstance(taken, Refusal):
                    taken = self.on_busy(taken)
            except HINDRANCES as error:
                self.hindered(error)
                raise
            if not isinstance(taken, Lease):
                return self.skipped(taken)
            with Holding(self, taken) as lease:
                self.on_held()
                with Closing(self, lease) as closing:
                    try:
                        closing.claim_row()
                        self.on_claimed()
                        scope.close_idle()
                        ensure_enclosing_held()  # the call may have waited for long inside of other locks
                    except GuardRejected as error:
                        return self.skipped(self._rejected(error))
                    except HINDRANCES as error:
                        self.hindered(error)
                        raise
                    call.begun = True
                    return body()

    async def arun(self, body: Callable[[], Awaitable[Any]]) -> Any:
        """Do what ``run`` does, for coroutines."""
        call = self.call
        async with Scope(call.release_connections) as scope:
            taken = self.before() or await call.lock.atake(self.wait, action=self.action)
            if isinstance(taken, Refusal):
                taken = await self.aon_busy(taken)
            if not isinstance(taken, Lease):
                return self.skipped(taken)
            async with Holding(self, taken) as lease, Closing(self, lease) as closing:
                try:
                    await closing.aclaim_row()
                except GuardRejected as error:
                    return self.skipped(self._rejected(error))
                await scope.aclose_idle()
                ensure_enclosing_held()
                call.begun = True
                return await body()

    def before(self) -> Skipped | None:
        """Return the result of a call that is not even to ask for its lock; ``None``: it asks."""
        return None

    def on_busy(self, refusal: Refusal) -> Lease | Skipped:
        """Return a lease all the same, or the result of a call whose body is not run, or raise."""
        return self.call.skip_or_raise(refusal.error)

    async def aon_busy(self, refusal: Refusal) -> Lease | Skipped:
        """Do what ``on_busy`` does, for coroutines."""
        return self.on_busy(refusal)

    def skipped(self, result: Skipped) -> Skipped:
        """Return the result of the call, whose body is not run."""
        return result

    def on_held(self) -> None:
        """Check, now that the lock is held, whether the call still has work; if not, raise."""

    def on_claimed(self) -> None:
        """Check, now that its row is claimed as well, whether the body may be started; if not, raise."""

    def hindered(self, error: Exception) -> None:
        """Put a call off, by an exception, whose body could not begin. Returns where a call cannot be put off.

        ``error``: one of ``HINDRANCES``, or that another transaction has locked the row.
        """

    def await_row(self, error: GuardRejected) -> None:
        """Put a call off, by an exception, whose row may not be committed yet. Returns where that is not the case."""

    def will_retry(self, error: BaseException) -> bool:
        """Tell whether the body that ended with ``error`` will be run again, so that its row stays claimable."""
        return host().will_retry(error)

    def stopped(self, error: BaseException) -> bool:
        """Tell whether the body was stopped from outside, so that its row stays claimable."""
        return not isinstance(error, Exception)

    def row_failed(self, claim: Claim) -> None:
        """Note that the row was closed as failed."""

    def release(self, lease: Lease, error: BaseException | None) -> None:
        """Release ``lease``. ``error``: the exception that ended the call."""
        self.call.lock.give(lease)

    async def arelease(self, lease: Lease) -> None:
        """Do what ``release`` does, for coroutines."""
        await self.call.lock.agive(lease)

    def _rejected(self, error: GuardRejected) -> Skipped:
        """Return the result of a call whose row cannot be claimed, or raise."""
        if error.reason == "row_locked":
            self.hindered(error)
            raises = self.call.on_conflict != "skip"
        else:
            self.await_row(error)
            raises = self.call.on_conflict in ("raise", "wait")
        if raises:
            raise error
        state = error.state
        return {
            "status": "skipped",
            "reason": error.reason,
            "name": self.call.lock.name,
            "state": state if state is None or isinstance(state, str | int | float | bool) else str(state),
        }


class Holding:
    """The block of a call's lease, and its release. A forked child leaves the body of its parent without that."""

    def __init__(self, caller: Caller, lease: Lease) -> None:
        self.caller = caller
        self.lease = lease

    def __enter__(self) -> Lease:
        self._block = Block(self.caller.call.lock, self.lease)
        return self.lease

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._block.leave()
        if not self.lease.inherited:
            self.caller.release(self.lease, error)

    async def __aenter__(self) -> Lease:
        return self.__enter__()

    async def __aexit__(self, *how: object) -> None:
        self._block.leave()
        if not self.lease.inherited:
            await self.caller.arelease(self.lease)


class Closing:
    """The claim of a call: the current one while the body runs. It writes to the row how the body ended."""

    def __init__(self, caller: Caller, lease: Lease) -> None:
        self.caller = caller
        call = caller.call
        self.claim: Claim | None = None
        self._process = os.getpid()
        if (row := call.row) is not None:
            self.claim = Claim(row.model, row.key, row.guard, lease.token, row.lookup)
            self.claim.releases = call.release_connections
            self.claim.mark = caller.mark
            self.claim.closing_patience = caller.closing_patience

    def claim_row(self) -> None:
        """Claim the row, if there is one. Raises ``GuardRejected``."""
        if self.claim is not None:
            self.claim.claim()

    async def aclaim_row(self) -> None:
        """Do what ``claim_row`` does, for coroutines: a thread writes to the row."""
        if self.claim is not None:
            await run_to_end(self.claim.claim)

    def __enter__(self) -> Self:
        if self.claim is not None:
            self._before = current.get()
            current.set(self.claim)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self._ends():
            self._close(error)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self._ends():
            await run_to_end(self._close, error)

    def _ends(self) -> bool:
        """End being the current claim; return whether the row is to be written to."""
        if self.claim is None:
            return False
        current.set(self._before)
        return self.claim.taken and self._process == os.getpid()  # a forked child leaves the body of its parent

    def _close(self, error: BaseException | None) -> None:
        assert self.claim is not None
        if error is None:
            self.claim.finish(overwrite=False)
        else:
            self._close_failed(self.claim, error)

    def _close_failed(self, claim: Claim, error: BaseException) -> None:
        """Write to the row how a failed body ended. The caller sees the body's own error, whatever happens here.

        The row is claimable again if the body will be retried, was stopped from outside (``SystemExit``,
        ``ReleaseAsked``, a cancelled coroutine), or lost its lock before it had begun. Otherwise it is failed, or as
        the body has ended it itself.
        """
        try:
            if isinstance(error, StaleClaim) and error.name == claim.name:
                return  # another claim has the row: that is already logged, signalled and counted
            stopped = _stopped_by_request(error) or (isinstance(error, LockLost) and not self.caller.call.begun)
            if stopped or self.caller.will_retry(error):
                claim.give_back()
            elif self.caller.stopped(error):
                claim.closing_patience = PATIENCE  # the process ends
                claim.leave()
            else:
                claim.fail(overwrite=False)
                self.caller.row_failed(claim)
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
