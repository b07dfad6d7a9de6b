"""The call of a task's own body by a worker, for a message."""

from __future__ import annotations

import logging
import time
from functools import cached_property
from typing import cast

from celery._state import get_current_worker_task

from django_tasklock.celery.delivery import postrun
from django_tasklock.celery.delivery.defer import reject
from django_tasklock.celery.delivery.duplicates import Attempt, acquire_busy
from django_tasklock.celery.delivery.history import History
from django_tasklock.celery.delivery.line import Line
from django_tasklock.celery.exceptions import Duplicate
from django_tasklock.celery.message import Message
from django_tasklock.celery.parking.rows import DOWN
from django_tasklock.celery.state import DeliveryState, state_of
from django_tasklock.decorators.call import Call, Caller, Skipped
from django_tasklock.exceptions import BackendUnavailable, GuardRejected
from django_tasklock.locks import events
from django_tasklock.locks.lease import Lease, Refusal
from django_tasklock.locks.lock import TaskLock

logger = logging.getLogger("django_tasklock")

FIRST_PAUSE = 0.5  # seconds until a message whose row is missing is tried again


class TaskCaller(Caller):
    """A worker that calls a task's own body for a message: it checks the history, the line and the lock in that order.

    ``message``: by default the worker's current one. ``callers_park``: whether a caller may have parked a message
    behind the lock although the task itself does not park.
    """

    def __init__(self, call: Call, message: Message | None = None, *, callers_park: bool = False) -> None:
        super().__init__(call)
        self.patience, self.wait = self.wait, 0.0
        self.lock = cast(TaskLock, call.lock)
        self.message = message or Message(get_current_worker_task())
        self.state: DeliveryState = state_of(self.message.request)
        """The state of the delivery, for code that runs after the call."""
        self.acks_late = self.message.acks_late
        self.uses_line = call.on_conflict in ("queue", "coalesce")
        self.callers_park = callers_park and not self.uses_line
        self.delivered_before = self.message.delivered_before
        self.action = self._action_when_busy()

    @cached_property
    def history(self) -> History:
        """The earlier deliveries. Not created for a first delivery that finds its lock free."""
        return History(self.message, self.lock, self.call.on_conflict)

    @cached_property
    def line(self) -> Line:
        """The messages that wait for the same lock."""
        return Line(self.history, self.call.queue_limit)

    @property
    def maybe_redelivered(self) -> bool:
        """Whether there may be earlier deliveries, as far as is known yet."""
        return "history" in self.__dict__ and self.history.maybe_redelivered

    def before(self) -> Skipped | None:
        """Check whether the message has work and whether it is its turn. Return a result if it is replaced.

        Raises ``Parked`` if it is parked and ``Duplicate`` if it has ended.
        """
        return self.check_before_lock() if self.delivered_before or self.uses_line else None

    def on_busy(self, refusal: Refusal) -> Lease | Skipped:
        """Take the lock over from a dead delivery, wait for it, or do what ``on_conflict`` says."""
        return self.lock.require_lease() if self.acquire_busy() else self.resolve_conflict()

    def on_held(self) -> None:
        """Check again, with the lock, whether the message has work."""
        if self.acks_late:  # if another delivery has written a row, it has also set the lock's flag
            self.state.remove_row = bool(self.message.sent or self.state.remove_row)
        if self.maybe_redelivered:
            self.check_with_lock()

    def _action_when_busy(self) -> str:
        """Return the action to record if the lock is busy at the first attempt; empty if the call waits for it."""
        if self.delivered_before:  # it may take the lock over from its own dead worker
            return "redelivered"
        action = self.call.on_conflict
        if action in ("skip", "reject") and self.message.is_continuation:
            return "retry"
        return "" if action == "wait" else action

    def check_before_lock(self) -> Skipped | None:
        """Check whether the message has work and whether it is its turn. With the database down the lock decides."""
        try:
            self.history.check_work()
            return self.line.wait_turn()
        except DOWN as error:
            logger.warning("lock %r: parked messages could not be read: %s", self.lock.name, error)
            return None

    def acquire_busy(self) -> bool:
        """Take the lock over from an earlier delivery, or wait for it with ``wait``. Return whether it is held."""
        history = self.history
        try:
            attempt = acquire_busy(self.lock, self.message)
        except Duplicate:
            if not self.acks_late or history.record_running():
                raise
            # The other delivery may have failed: continue as after waiting for it.
            if not self.lock.acquire(blocking=False):
                return self.acquire_busy()
            attempt = Attempt(taken=True, released_meanwhile=True)
        history.record_attempt(attempt)
        if attempt.undecided:
            history.defer()
        return attempt.taken or (self.call.on_conflict == "wait" and self.lock.acquire(blocking_timeout=self.patience))

    def resolve_conflict(self) -> Skipped:
        """Do what ``on_conflict`` says, after any waiting. Return the result of the call if it is skipped.

        Otherwise raises: ``TaskLockAcquireError``; ``Duplicate`` if another delivery has done the work; ``Retry``,
        ``Parked`` or ``Rejected`` for Celery.
        """
        lock, action, message = self.lock, self.call.on_conflict, self.message
        error = lock.conflict_error()
        self.history.discard_if_done()
        if isinstance(error.__cause__, BackendUnavailable) and action not in ("raise", "wait"):
            return self.call.skip(error)  # as on_unavailable="skip" demands
        if action in ("skip", "reject") and message.is_continuation:
            action = "retry"
        if action == "reject":
            if message.in_canvas:  # without this member's result the others would wait for ever
                return self.call.skip(error)
            events.conflict(error, "reject")
            reject(error, message)
        if action == "retry":
            events.conflict(error, "retry")
            self.history.defer()
        if self.uses_line:
            events.conflict(error, action)
            return self.line.park()
        return self.call.skip_or_raise(error)

    def row_locked(self, error: GuardRejected) -> None:
        """Do what ``on_conflict`` says; ``queue`` and ``coalesce`` send the message again, as ``retry`` does."""
        action = self.call.on_conflict
        if action in ("retry", "queue", "coalesce") or (action in ("skip", "reject") and self.message.is_continuation):
            self.history.defer(why=str(error))
        if action == "reject" and not self.message.in_canvas:
            reject(error, self.message)
        if action in ("raise", "wait"):
            raise error

    def check_with_lock(self) -> None:
        """Check again, while the lock is held, whether the message has work, and count the start."""
        history = self.history
        try:
            if history.start_promoted():
                return
            history.check_work(locked=True)
        except DOWN as error:
            logger.warning("lock %r: earlier deliveries could not be read: %s", self.lock.name, error)
        history.discard_if_done()
        try:
            # If the row could not be read above, it may still exist.
            if not history.row_was_read:
                history.check_work(locked=True)
            history.count_start()
        except DOWN as error:
            logger.warning("%s[%s]: its start was not counted: %s", self.message.task.name, self.message.id, error)

    def await_row(self, error: GuardRejected) -> None:
        """Send the message again, as the transaction that creates its row may still be open; or fail after a while.

        The pauses grow with the time since the first try: half a second, the same, 1, 2, 4 seconds and so on.
        """
        assert self.call.row is not None
        patience, now = self.call.row.guard.missing_timeout, time.time()
        since, retries = self.message.header.get("missing") or (now, self.message.retries)
        if retries != self.message.retries:  # of an earlier try, which had found its row
            since = now
        waited = max(0.0, now - since)
        if waited < patience:
            pause = min(max(FIRST_PAUSE, waited), patience - waited)
            self.history.defer(seconds=pause, why=str(error), missing=(since, self.message.retries))
        raise GuardRejected(
            f"{error}, and it was not created within {patience:g} s. If the transaction that creates it also publishes"
            " the task, publish that with delay_on_commit(), or in transaction.on_commit()",
            name=error.name,
            reason=error.reason,
        )

    def release(self, lease: Lease, error: BaseException | None) -> None:
        """Leave the line and close the row, then release the lock, so that the next holder sees neither."""
        try:
            if self.uses_line:
                self.line.leave()
            if self.maybe_redelivered and self.history.has_row:
                self.history.close(error, lease.token)
        finally:  # a time limit may strike in the ``try`` block
            self.release_lock(lease, error)

    def release_lock(self, lease: Lease, error: BaseException | None) -> None:
        """Release the lock and promote the next waiting message."""
        lock, row_flag = self.lock, postrun.ROW_FLAG + self.message.id
        flags = [lock.name] if self.callers_park else []
        if self.acks_late:
            flags.append(row_flag)
        _, flags_set = lock.give_and_clear(lease, tuple(flags))
        if self.uses_line:
            self.line.promote_after_release()
        elif self.callers_park and flags_set is None:
            self.line.promote_if_flagged()
        elif self.callers_park and flags_set and lock.name in flags_set:
            self.line.promote_next()
        if self.acks_late and flags_set is not None:
            self.state.remove_row = row_flag in flags_set or self.state.remove_row or None
        if self.state.remove_row is not None and self.message.will_be_redelivered(error):
            # The delivery that wrote the row may have acknowledged the broker's copy, so the row must restore it.
            self.state.remove_row = None
            if not self.history.has_row:
                self.history.close(error, lease.token)
