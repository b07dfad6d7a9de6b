"""The call of a task's own body by a worker, for a message."""

from __future__ import annotations

import logging
from typing import Protocol, cast

from celery._state import get_current_worker_task

from django_tasklock.celery.delivery import postrun
from django_tasklock.celery.delivery.conflict import resolve_conflict
from django_tasklock.celery.delivery.duplicates import TAKEN, aacquire_now, acquire_now
from django_tasklock.celery.delivery.history import History
from django_tasklock.celery.delivery.line import Line
from django_tasklock.celery.exceptions import Duplicate
from django_tasklock.celery.message import Message
from django_tasklock.celery.parking.rows import DOWN
from django_tasklock.decorators.call import CallKind, CallOptions, Skipped
from django_tasklock.locks.lock import TaskLock

logger = logging.getLogger("django_tasklock")


class KeptLock(Protocol):
    """A lock that ``retry()`` may keep for the next try of its message."""

    def wait(self, history: History) -> bool:
        """Wait for the lock. Return whether it is ours; puts the message off if it is kept for another one."""

    def offer(self) -> None:
        """Let the message of a next try bring what the lock is kept under."""

    def keep(self, error: BaseException | None) -> bool:
        """Keep the lock in place of its release, if the run ended with ``retry()``. Return whether it did."""


class TaskCall(CallKind):
    """The call of a task's own body for a message. It asks its history, its line and, busy, what its word says.

    ``kept_lock``: what is done for ``retry_keeps_lock``. ``callers_park``: a caller may have chosen to be parked behind
    the lock although the task itself does not park.
    """

    def __init__(self, options: CallOptions, kept_lock: KeptLock | None = None, *, callers_park: bool = False) -> None:
        self.options = options
        self.lock = cast(TaskLock, options.lock)
        self.message = Message(get_current_worker_task())
        self.late = self.message.late
        self.history = History(self.message, self.lock, options.on_conflict)
        self.line = Line(self.history, options.queue_limit, callers_park=callers_park)
        self.kept_lock = kept_lock

    def take(self) -> Skipped | None:
        """Take the lock when it is this message's turn, unless it is over, parked, superseded or another delivery's."""
        if self.history.known or self.line.lines_up:
            skipped = self.look_before()
            if skipped is not None:
                return skipped
        if not self.acquire():
            return resolve_conflict(self.options, self.history, self.line)
        skipped = self.confirm() if self.history.known else None
        if skipped is None and self.kept_lock is not None:
            self.kept_lock.offer()
        return skipped

    async def atake(self) -> Skipped | None:
        """Take the lock for a coroutine, which neither waits in line nor is known to later deliveries."""
        outcome = await aacquire_now(self.lock, self.message)
        self.history.learn(outcome)
        if outcome.unsure:
            self.history.put_off()
        if outcome.taken or (self.options.on_conflict == "wait" and await self.lock.aacquire()):
            return None
        return resolve_conflict(self.options, self.history, self.line)

    def look_before(self) -> Skipped | None:
        """Look whether it has work and whether it is its turn. With the database down the lock decides."""
        try:
            return self.line.wait_turn() if self.history.has_work() else self.line.end_superseded()
        except DOWN as error:
            logger.warning("lock %r: parked messages could not be looked at: %s", self.lock.name, error)
            return None

    def acquire(self) -> bool:
        """Take the lock, or over from a dead delivery, or wait for it. Return whether it is ours."""
        history, message = self.history, self.message
        try:
            outcome = acquire_now(self.lock, message)
        except Duplicate:
            if self.late:
                history.record_running()
            raise
        if outcome is not TAKEN:
            history.learn(outcome)
            if outcome.unsure:
                history.put_off()
        taken = outcome.taken or (self.options.on_conflict == "wait" and self.wait())
        if taken and self.late:  # that another delivery has kept a row for it, that would have noted
            postrun.clean_up_after(message.request, sure=bool(message.sent))
        return taken

    def wait(self) -> bool:
        """Wait for the lock. Return whether it is ours."""
        return self.lock.acquire() if self.kept_lock is None else self.kept_lock.wait(self.history)

    def confirm(self) -> Skipped | None:
        """Look again with the lock in hand whether it has work, and count the start."""
        history = self.history
        try:
            if history.start_promoted():
                return None
            if not history.has_work(locked=True):
                return self.line.end_superseded()
        except DOWN as error:
            logger.warning("lock %r: earlier deliveries could not be looked at: %s", self.lock.name, error)
        history.discard_if_done()
        try:
            # What could not be read is not what is not there.
            if not history.looked and not history.has_work(locked=True):
                return self.line.end_superseded()
            history.count_start()
        except DOWN as error:
            logger.warning("%s[%s]: its start was not counted: %s", self.message.task.name, self.message.id, error)
        return None

    def leave(self, error: BaseException | None) -> None:
        """Give up place and row, then the lock: who finds that free finds neither of ours."""
        try:
            self.line.leave()
            if self.history.kept:
                self.history.close(error)
        finally:  # a time limit may strike in there
            self.release(error)

    def release(self, error: BaseException | None) -> None:
        """Release the lock, or keep it for the next try, and promote who waits for it."""
        if self.kept_lock is not None and self.kept_lock.keep(error):
            return
        if self.late:
            self.lock.notes = (*self.line.notes, postrun.AGAIN + self.message.id)
        else:
            self.lock.notes = self.line.notes
        self.lock.__exit__(None, None, None)
        self.line.promote_after_release()
        if self.late and self.lock.noted is not None:
            postrun.note(self.message, self.lock.noted)
