"""One decorated call: the lock around it, the claim around it, and what a skip looks like."""

from __future__ import annotations

import logging
import os
from contextlib import AsyncExitStack, ExitStack
from typing import Any

from django.db.models import Model

from django_tasklock.context import ensure_standing
from django_tasklock.db.connections import LONG, Scope
from django_tasklock.db.threads import to_the_end
from django_tasklock.exceptions import (
    BackendUnavailable,
    GuardRejected,
    LockLost,
    ReleaseAsked,
    StaleClaim,
    TaskLockAcquireError,
)
from django_tasklock.guards.claim import Claim, current
from django_tasklock.guards.guard import StateGuard
from django_tasklock.host import host
from django_tasklock.locks import events
from django_tasklock.locks.lock import Acquirable

logger = logging.getLogger("django_tasklock")


class Running:
    """One call of a decorated function. ``skipped`` is its result if the body was not run.

    Busy, here where nobody can put a message aside: ``"skip"`` skips, every other word raises.
    """

    reason = "already_processing"
    """Why a call is skipped that found no lock to be had."""

    def __init__(
        self,
        lock: Acquirable,
        on_conflict: str,
        model: type[Model] | None = None,
        pk: Any = None,
        guard: StateGuard | None = None,
        queue_limit: int | None = None,
        release_connections: bool | None = None,
    ) -> None:
        self.lock = lock
        self.on_conflict = on_conflict
        self.model = model
        self.pk = pk
        self.guard = guard
        self.queue_limit = queue_limit
        self.scope = Scope(release_connections, long=lock.timeout > LONG)
        if model is not None:
            lock.row = f"{model._meta.label_lower}:{pk}"
        self.skipped: dict[str, Any] | None = None
        self._closing: Closing | None = None

    def enter(self, stack: ExitStack) -> bool:
        """Take lock and row, to be given back by ``stack``; False: skipped."""
        stack.push(self.scope)
        self.scope.begin()
        stack.push(self._exit)  # first: a time limit may strike between taking the lock and saying so
        if not self._acquire():
            return False if self.skipped else self._conflict()
        self.lock.enter()
        if self.model is not None and self.guard is not None:
            claim = self._claim(self.model, self.guard)
            self._closing = Closing(claim)
            stack.push(self._closing)
            try:
                claim.claim()
            except GuardRejected as error:
                return self._rejected(error)
        self.scope.close_idle()
        return self._begins()

    async def aenter(self, stack: AsyncExitStack) -> bool:
        """``enter`` for coroutines."""
        stack.push_async_exit(self.scope.later)
        self.scope.begin()
        stack.push_async_exit(self._aexit)
        if not await self._aacquire():
            return self._conflict()
        self.lock.enter()
        if self.model is not None and self.guard is not None:
            claim = self._claim(self.model, self.guard)
            self._closing = Closing(claim)
            stack.push_async_exit(self._closing.later)
            try:
                await to_the_end(claim.claim)
            except GuardRejected as error:
                return self._rejected(error)
        await self.scope.aclose_idle()
        return self._begins()

    def _begins(self) -> bool:
        """Look right before the body, which may have waited for long inside of other locks."""
        ensure_standing()
        if self._closing is not None:
            self._closing.begun = True
        return True

    def _claim(self, model: type[Model], guard: StateGuard) -> Claim:
        claim = Claim(model, self.pk, guard, self.lock.token)
        claim.releases, claim.long = self.scope.everything, self.scope.long
        return claim

    def _acquire(self) -> bool:
        return self.lock.acquire()

    async def _aacquire(self) -> bool:
        return await self.lock.aacquire()

    def struck(self, *, later: bool = False) -> None:
        """Give up what a time limit that struck as its stack was unwound has kept from being released."""
        if self._ours:
            self.lock.struck(later=later)

    def _exit(self, *how: Any) -> None:
        if self._ours:
            self.lock.__exit__(*how)

    async def _aexit(self, *how: Any) -> None:
        if self._ours:
            await self.lock.__aexit__(*how)

    @property
    def _ours(self) -> bool:
        return self.lock.taken

    def _conflict(self) -> bool:
        error = self._met()
        if self.on_conflict == "skip":
            return self._skip(error)
        events.conflict(error, "raise")
        raise error

    def _met(self) -> TaskLockAcquireError:
        return self.lock.conflict or TaskLockAcquireError(
            f"{self.lock.noun} {self.lock.name!r} is busy", name=self.lock.name
        )

    def _skip(self, error: TaskLockAcquireError) -> bool:
        events.conflict(error, "skip")
        down = isinstance(error.__cause__, BackendUnavailable)
        self.skipped = {
            "status": "skipped",
            "reason": "lock_unavailable" if down else self.reason,
            "name": self.lock.name,
            "holder": error.holder,
            "held_for": error.held_for,
            "time_left": error.time_left,
        }
        return False

    def _rejected(self, error: GuardRejected) -> bool:
        if self.on_conflict in ("raise", "wait"):
            raise error
        state = error.state
        self.skipped = {
            "status": "skipped",
            "reason": "invalid_state",
            "name": self.lock.name,
            "state": state if state is None or isinstance(state, str | int | float | bool) else str(state),
        }
        return False


class Closing:
    """Makes ``claim`` current while the body runs, then writes how it ended."""

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.begun = False
        """Whether the body was run: else the row is left as claimable as it was."""
        self._process = os.getpid()
        self._before = current.get()
        current.set(claim)

    def __call__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        current.set(self._before)
        if self._due:
            close(self.claim, error, self.begun)

    async def later(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """The same for coroutines: the writes go to a thread, the claim stays in this context."""
        current.set(self._before)
        if self._due:
            await to_the_end(close, self.claim, error, self.begun)

    @property
    def _due(self) -> bool:
        return self.claim.taken and self._process == os.getpid()  # a forked child leaves the body of its parent


def close(claim: Claim, error: BaseException | None, begun: bool = True) -> None:
    """Write how the body left the row."""
    if error is None:
        claim.finish()
    else:
        close_failed(claim, error, begun)


def close_failed(claim: Claim, error: BaseException, begun: bool = True) -> None:
    """Write how a failed body leaves the row; the body's own error is what the caller sees.

    To be run again, or stopped from outside (``SystemExit``, ``ReleaseAsked``, a cancelled coroutine), or lost its
    lock before it had ``begun``: claimable.
    """
    try:
        if isinstance(error, StaleClaim) and error.name == claim.name:
            return  # the row is somebody else's: already logged, signalled and counted
        stopped = isinstance(error, ReleaseAsked) or (isinstance(error, LockLost) and not begun)
        if stopped or not isinstance(error, Exception) or host().will_retry(error):
            claim.give_back()
        else:
            claim.fail()
    except StaleClaim as stale:
        error.add_note(f"its row was not marked: {stale}")
    except Exception as trouble:
        logger.exception("%s %r: could not be marked as failed", claim.model._meta.label, claim.pk)
        error.add_note(f"its row was not marked: {trouble}")
