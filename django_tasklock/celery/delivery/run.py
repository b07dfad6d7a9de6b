"""A delivery: what Celery adds to the call of a task's own body, from the arrival of its message to its end.

In the order of its methods: is it the message's turn (``queue``, ``coalesce``)? If the lock is busy: is its holder
dead, or another delivery of this message (``duplicates``)? Held by another one: what ``on_conflict`` says. With the
lock in hand: is the work done already, and how often was it, or its row, begun? At the end: who is next?
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NoReturn, cast

from celery._state import get_current_worker_task
from django.db import Error, router

from django_tasklock.backends import get_backend
from django_tasklock.celery.canvas import drop_links
from django_tasklock.celery.definition import patience_of
from django_tasklock.celery.delivery.defer import defer_within, put_off, resolve
from django_tasklock.celery.delivery.duplicates import Earlier, mark_ttl
from django_tasklock.celery.delivery.line import Line
from django_tasklock.celery.host import ended_by_worker, will_retry
from django_tasklock.celery.message import Message, left_mark
from django_tasklock.celery.queue.promoter import promote
from django_tasklock.celery.queue.rows import DOWN
from django_tasklock.celery.state import state_of
from django_tasklock.db.transactions import hidden_by_test
from django_tasklock.decorators.call import Call, Caller, Skipped
from django_tasklock.exceptions import BackendUnavailable, BodyExited, GuardRejected
from django_tasklock.guards.claim import Claim
from django_tasklock.host import Task
from django_tasklock.locks import events
from django_tasklock.locks.lease import Lease, Refusal
from django_tasklock.locks.lock import TaskLock

logger = logging.getLogger("django_tasklock")


def run_body(message: Message, body: Callable[[], Any]) -> Any:
    """Run the body of a message's task.

    Raises ``BodyExited`` for what the body raises that Celery would take for the death of the process.
    """
    try:
        return body()
    except Exception:
        raise
    except BaseException as error:
        if ended_by_worker(error) or will_retry(error):
            raise
        how = f"called sys.exit({error.code!r})" if isinstance(error, SystemExit) else f"raised {error!r}"
        text = f"{message.task.name}[{message.id}]: its body {how}, which ends a process. Return, or raise an Exception"
        raise BodyExited(text) from error


class BodyCaller(Caller):
    """A task's own body, which is called for a message or by ``apply()``. ``request``: the task's."""

    def __init__(self, call: Call, request: Any) -> None:
        super().__init__(call)
        self.request = request

    def skipped(self, result: Skipped) -> Skipped:
        """Return the result. Links expect that of a body, and are not called."""
        drop_links(self.request)
        return result


class TaskCaller(BodyCaller):
    """A worker that calls a task's own body for a message.

    ``message``: by default the worker's current one. ``callers_park``: whether a caller may have parked a message
    behind the lock although the task itself does not park.
    """

    def __init__(self, call: Call, message: Message | None = None, *, callers_park: bool = False) -> None:
        self.message = message = message or Message(get_current_worker_task())
        super().__init__(call, message.request)
        self.lock = cast(TaskLock, call.lock)
        self.lock.task = Task(message.task.name, message.id, message.try_number)
        self.mark = left_mark(message.task.name, message.id)
        self.closing_patience = patience_of(message.task)
        self.earlier = Earlier(message, call.row, comes_again=message.acks_late or message.was_put_off)
        self.line: Line | None = None
        """The messages that wait for the same lock in the database, with ``queue`` and ``coalesce``."""
        if call.on_conflict in ("queue", "coalesce"):
            self.line = Line(message, self.earlier, self.lock.name, call.on_conflict, call.queue_limit)
        self.callers_park = callers_park and self.line is None
        self.patience, self.wait = self.wait, 0.0
        self.action = self._action_when_busy()

    def _action_when_busy(self) -> str:
        """Return the action to count if the lock is busy at the first attempt; empty if the call waits for it."""
        if self.message.delivered_before:  # it may take the lock over from its own dead worker
            return "redelivered"
        return "" if self.patience else self._word()

    def _word(self) -> str:
        """Return ``on_conflict``, except that work that has begun already is neither skipped nor rejected."""
        word = self.call.on_conflict
        return "retry" if word in ("skip", "reject") and self.message.is_continuation else word

    def run(self, body: Callable[[], Any]) -> Any:
        """Run ``body`` as any call does. If it goes on after ``retry(throw=False)`` it ends as retried all the same.

        Celery would store a success, by which the next try, if it is redelivered, seems to be done.
        """

        def run_once() -> Any:
            result = run_body(self.message, body)
            if (retried := state_of(self.message.request).retried) is not None:
                raise retried
            return result

        return super().run(run_once)

    # Before the lock

    def before(self) -> Skipped | None:
        """Wait for the message's turn: it is parked (``Parked``) or has a result if it is not to ask for the lock.

        With the database down the lock decides.
        """
        if self.line is None:
            return None
        try:
            return self.line.wait_turn()
        except DOWN as error:
            logger.warning("lock %r: parked messages could not be read: %s", self.lock.name, error)
            return None

    # The lock is busy

    def on_busy(self, refusal: Refusal) -> Lease | Skipped:
        """Take the lock over from a dead holder, or wait for it with ``wait``, or do what ``on_conflict`` says.

        Raises ``TaskLockAcquireError``; ``Duplicate`` if another delivery has the work or has done it; ``Retry``,
        ``Parked`` or ``Rejected`` for Celery.
        """
        answer = self.earlier.take_over(self.lock, refusal)
        if isinstance(answer, Refusal) and self.patience:
            self.earlier.waited = True
            answer = self.lock.take(self.patience)
        if isinstance(answer, Lease):
            return answer
        (self.line or self.earlier).end_if_done()
        return self._resolve_conflict(answer)

    def _resolve_conflict(self, refusal: Refusal) -> Skipped:
        error, word = refusal.error, self._word()
        if self.line is not None and error.__cause__ is None:  # with the store down, on_unavailable decides
            events.conflict(error, word)
            self.line.park()
        return resolve(self.call, self.message, error, word)

    # The lock is held

    def on_held(self) -> None:
        """Check, if the message may have been delivered before, whether it has work left.

        Raises ``Duplicate`` if another delivery has done it.
        """
        if self.line is not None:
            if self.call.on_conflict == "coalesce":
                state_of(self.message.request).await_turn = self.line.await_turn
            try:
                self.line.begin()
            except DOWN as error:
                logger.warning("lock %r: parked messages could not be read: %s", self.lock.name, error)
        self.earlier.begin_again()
        if self.message.delivered_before:
            self.earlier.end_if_done()

    def on_claimed(self) -> None:
        """Count the start, if there may have been one before. Raises ``CrashLoop``, which closes the row as failed."""
        self.earlier.count_start(self.lock.name)

    def row_failed(self, claim: Claim) -> None:
        """Note that whoever sets the row back gives it all its starts again."""
        self.earlier.row_failed = True

    # The body cannot begin

    def hindered(self, error: Exception) -> NoReturn:
        """Put the message off, whatever ``on_conflict`` says: nobody else does its work."""
        self._refuse_in_test(error)
        if self.line is not None:
            self.line.put_off(error)
        put_off(self.message, error)

    def await_row(self, error: GuardRejected) -> None:
        """Send the message again, as the transaction that creates its row may still be open; or fail after a while.

        If it was published inside of a transaction, that may also be about to change the state of a row that does not
        fit. The call ends by that state if it stays so.
        """
        assert self.call.row is not None
        self._refuse_in_test(error)
        is_missing = error.reason == "missing"
        if not (is_missing or self.message.is_from_transaction):
            return
        patience = self.call.row.guard.missing_timeout
        defer_within(self.message, patience, str(error), "row_awaited")
        if is_missing:
            raise GuardRejected(
                f"{error}, and it was not created within {patience:g} s. If the transaction that creates it also"
                " publishes the task, publish that with delay_on_commit(), or in transaction.on_commit()",
                name=error.name,
                reason=error.reason,
            )

    def _refuse_in_test(self, error: Exception) -> None:
        """Raise at once if the row may be one of a test that will never commit it, as each further try would fail."""
        row = self.call.row
        if row is None or not isinstance(error, GuardRejected | Error):
            return
        if not hidden_by_test(router.db_for_write(row.model)):
            return
        raise GuardRejected(
            f"{error}. A worker in the process of a test does not see what the test writes in a transaction, which it"
            " never commits: mark it django_db(transaction=True), or make it a TransactionTestCase",
            name=self.lock.name,
            reason=getattr(error, "reason", "row_locked"),
            state=getattr(error, "state", None),
        ) from error

    # The end

    def release(self, lease: Lease, error: BaseException | None) -> None:
        """Leave the line, so that the next holder finds nothing of this message; release the lock; promote the next."""
        lock = self.lock
        try:
            if self.line is not None:
                self.line.leave()
        finally:  # a time limit may strike in the ``try`` block
            mark = self.earlier.mark_of_end(error)
            ttl = mark_ttl(self.message.task.app) if mark else 0
            ending = lock.give_and_mark(lease, mark, ttl, clear=self.callers_park)
        if self.line is not None:
            self.line.promote_after_release()
        elif self.callers_park and (self._is_flagged() if ending.flagged is None else ending.flagged):
            promote(lock.name, self.message.task.app)
        self.earlier.end(error, ending, mark)

    def _is_flagged(self) -> bool:
        """Return whether the lock is flagged because a message was parked behind it, where the release did not say."""
        try:
            return get_backend().clear_flag(self.lock.name)
        except BackendUnavailable as error:
            logger.warning("lock %r: its parked messages are left to the workers' next poll: %s", self.lock.name, error)
            return False
