"""The earlier deliveries of a message, as one delivery sees them: in the lock, in marks beside it, and by their result.

A message is never skipped because it was delivered before: a worker that died leaves its lock behind, and to skip what
comes back would acknowledge work that is never done. So a delivery that meets its own message in the lock takes over
from a dead process, and leaves the work to a living one. Marks of a message that is acknowledged late:

* ``done:<message>``: it has ended, and nothing is missing but the acknowledgement. If nobody waits for what Celery does
  after the run, the release of the lock leaves it, in one trip; otherwise ``task_postrun`` does, once that is done.
* ``starts:<message>``: how often a message that may have been started before was started, without having ended since.
  If it claims a row it is ``starts:<row>``, as it may be another message that brings the row next time.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Generator
from datetime import UTC, datetime, tzinfo
from typing import Any, NoReturn

from celery.exceptions import Retry
from celery.utils.time import maybe_iso8601
from django.conf import settings
from django.utils.timezone import get_default_timezone

from django_tasklock import counts
from django_tasklock.backends import get_backend
from django_tasklock.celery.broker import return_time
from django_tasklock.celery.delivery.defer import defer, send_again
from django_tasklock.celery.host import will_retry
from django_tasklock.celery.message import Message
from django_tasklock.celery.state import STATE, Duplicate, Parked, state_of
from django_tasklock.decorators.rows import GuardedRow
from django_tasklock.exceptions import BackendUnavailable, CrashLoop, LockLost, StaleClaim, TaskLockAcquireError
from django_tasklock.locks import events
from django_tasklock.locks.holder import alive
from django_tasklock.locks.lease import Lease, Refusal
from django_tasklock.locks.lock import TaskLock
from django_tasklock.names import of_tenant, with_tenant
from django_tasklock.types import Ending, Record

logger = logging.getLogger("django_tasklock")

TAKEOVERS = 3
"""The default number of times that a message whose worker died is started again."""
LONGEST_WATCH = 60_000  # milliseconds to watch a holder of which nobody knows whether it lives, and who has no lease
MARGIN = 0.5  # seconds after which a lease that was not renewed has certainly ended
RESULT_WAIT = 2.0  # seconds to wait for the result of another delivery that has just released the lock
SKEW = 5.0  # seconds by which the clocks of two machines may differ

Request = tuple[float, str]
"""How long to wait for the lock, and the token of the lease that may be replaced."""


class Earlier:
    """The earlier deliveries of a message.

    ``comes_again``: whether a delivery that finds another one alive sends its message once more, in case that one is
    interrupted, as the broker's copy may be this one, or is none: a request to the store that failed, and had taken the
    lock all the same. ``row``: the row that the call claims.
    """

    def __init__(self, message: Message, row: GuardedRow | None = None, *, comes_again: bool) -> None:
        self.message = message
        self.comes_again = comes_again
        self.mark = f"{message.id}:{message.try_number}:{message.published or ''}"
        """What is marked. Each try is a message of its own; an id may be used again."""
        self.done = f"done:{self.mark}"
        self.died = message.after_death
        """Whether the process of one was found dead, here or by a sweep."""
        self.waited = False
        """Whether the lock was waited for. It may have been released by another delivery, just now."""
        self.row_failed = False
        """Whether the row was closed as failed: its starts are counted anew if somebody sets it back."""
        self._counter = f"starts:{self.mark}"
        if row is not None:
            with of_tenant(message.header.get("tenant")):
                self._counter = f"starts:{with_tenant(str(row))}:{row.guard.claim_as}"
        self._what = self._who if row is None else f"{row}, by {self._who}"
        self._starts = 0

    # The lock

    def take_over(self, lock: TaskLock, refusal: Refusal) -> Lease | Refusal:
        """Acquire a lock that was found busy if its holder is dead; otherwise return the last refusal.

        Raises ``Duplicate`` if another delivery is alive, and ``Retry`` if an earlier try is.
        """
        steps = self._judge(lock, refusal)
        try:
            wait, token = next(steps)
            while True:
                wait, token = steps.send(lock.take(wait, supersedes=token, action=""))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    async def atake_over(self, lock: TaskLock, refusal: Refusal) -> Lease | Refusal:
        """Do what ``take_over`` does, for coroutines."""
        steps = self._judge(lock, refusal)
        try:
            wait, token = next(steps)
            while True:
                wait, token = steps.send(await lock.atake(wait, supersedes=token, action=""))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def _judge(self, lock: TaskLock, refusal: Refusal) -> Generator[Request, Lease | Refusal, Lease | Refusal]:
        """Judge the holder, whoever it is by then; yield how to ask for the lock next, and receive the answer."""
        message, was_judged, watched = self.message, self.message.again, ""
        while (record := refusal.record) is not None:
            wait, token = 0.0, ""
            tries_later = message.try_number - record.holder.retries
            if not self.is_ours(record):
                break  # where it is dead, ``take`` has freed it
            elif tries_later < 0:
                discard(message, "a later try of it runs", refusal.error)
            else:
                message.again |= not tries_later
                living = alive(record.holder)
                if living is False:
                    self.died |= not tries_later
                    token = record.token
                elif record.token == watched or (not tries_later and (living or was_judged)):
                    self._leave_to(refusal, tries_later)
                else:
                    # An earlier try, which is about to end, as retry() publishes before it raises. Or another machine:
                    # if its lease is renewed it is alive, if the lease ends it is dead.
                    self.waited, watched = True, record.token
                    longest = lock.parameters.lease_ms or LONGEST_WATCH
                    wait = min(longest, longest if record.ttl is None else record.ttl) / 1000 + MARGIN
            answer = yield wait, token
            if isinstance(answer, Lease):
                if token:
                    events.holder_died(record, lock.name)
                return answer
            refusal = answer
        return refusal

    def _leave_to(self, refusal: Refusal, tries_later: int) -> NoReturn:
        """Leave the message to the delivery that holds its lock, which is alive."""
        if tries_later:
            defer(self.message, str(refusal.error))
        if not self.comes_again:
            discard(self.message, "another delivery of it runs", refusal.error)
        seconds = send_again(self.message, put_off=self.message.header.get("put_off"))
        discard(self.message, f"another delivery of it runs, again in {seconds:.1f} s", refusal.error)

    def is_ours(self, record: Record) -> bool:
        """Return whether the holder is a delivery of this message."""
        return record.holder.task_id == self.message.id and record.holder.task == self.message.task.name

    # The marks, and the result

    def end_if_done(self) -> None:
        """Raise ``Duplicate`` if another delivery has done the work, or too many workers have died of it."""
        if not self.message.delivered_before:
            return
        # Looked at once, unless it may come any moment.
        ends = time.monotonic() + (RESULT_WAIT if self.waited and self.message.is_awaited else 0.0)
        while not (reason := self._end() or finished_reason(self.message)) and time.monotonic() < ends:
            time.sleep(0.05)
        if reason:
            discard(self.message, reason)

    def _end(self) -> str:
        """Return that another delivery has ended, if it has left the mark."""
        try:
            return "it has ended" if get_backend().tally(self.done, 0) else ""
        except BackendUnavailable as error:
            logger.warning("%s: it is not known whether it is done: %s", self._who, error)
            return ""

    def count_start(self, name: str) -> None:
        """Count a start, while the lock ``name`` is held, if there may have been one before. Raises ``CrashLoop``."""
        if not self.message.may_be_restarted:
            return
        try:
            self._starts = get_backend().tally(self._counter)
            if self.died and self._starts == 1:  # the first start of a message is not counted when it is made
                self._starts = get_backend().tally(self._counter)
        except BackendUnavailable as error:
            logger.warning("%s: its start was not counted: %s", self._who, error)
            return
        died = self._starts - 1
        if died:
            counts.count(counts.TAKEN_OVER, counts.clean_kind(self.message.task.name))
        if died > int(getattr(self.message.task, "takeovers", TAKEOVERS)):
            text = f"{self._what}: {died} workers died of it, or lost its lock; it is not started again"
            logger.error("%s", text)
            raise CrashLoop(text, name=name)

    def count_death(self) -> None:
        """Count the start of a delivery whose process is killed, which finds no lock of it any more.

        The first start is not counted when it is made. Raises ``BackendUnavailable``.
        """
        if not get_backend().tally(self._counter, 0):
            get_backend().tally(self._counter)

    def begin_again(self) -> None:
        """Take the mark back if this very delivery has left it: what is around the body calls it once more."""
        state = state_of(self.message.request)
        if state.marked:
            state.marked = False
            get_backend().tally(self.done, -1)

    def mark_of_end(self, error: BaseException | None) -> str:
        """Return the mark to leave with the release of the lock, after a run that ended with ``error``, if any.

        It is left later if something follows without which the message has not ended, or if another delivery may have
        the work.
        """
        if not self._is_final(error):
            return ""
        if isinstance(error, Retry):  # the next try was sent
            return self.done
        follows = error is not None and (isinstance(error, StaleClaim | LockLost) or will_retry(error))
        return "" if follows or self.message.is_awaited else self.done

    def end(self, error: BaseException | None, ending: Ending, mark: str = "") -> None:
        """Take the count back, as the run has ended in order; have the message marked as done if it is not yet.

        ``ending``: that of the lock, which was to leave ``mark`` as ``mark_of_end`` said.
        """
        if not ending.outcome and isinstance(error, StaleClaim | LockLost):
            return  # another delivery has the work, and this one stays counted: each might overtake the one before
        if self._starts and (self.row_failed or not isinstance(error, CrashLoop)):  # else others may come
            try:
                get_backend().tally(self._counter, -self._starts)
            except BackendUnavailable as trouble:
                logger.warning("%s: it stays counted as started: %s", self._who, trouble)
        if self.comes_again:
            state, left = state_of(self.message.request), ending.marked
            if mark and not left:  # the body has released the lock itself, or the store is down
                left = leave_mark(mark, self.message.task, self.message.id)
            state.marked = left
            state.ended = self.done if not mark and self._is_final(error) else None

    def _is_final(self, error: BaseException | None) -> bool:
        """Return whether a run that ended with ``error``, if any, is the last of this try that the broker can start.

        Not if the same try was sent again, by ``defer`` or for its turn: unlike Celery's that retry has no signature.
        """
        sent_again = isinstance(error, Retry) and getattr(error, "sig", None) is None
        elsewhere = sent_again or isinstance(error, Duplicate | Parked)
        return self.comes_again and not (elsewhere or self.message.will_be_redelivered(error))

    @property
    def _who(self) -> str:
        return f"{self.message.task.name}[{self.message.id}]"


def on_postrun(sender: Any = None, **details: Any) -> None:
    """Mark a message as done, now that its result is stored, and what follows it sent (``task_postrun``).

    A crash before that needs another run.
    """
    state = sender.request.__dict__.get(STATE)
    if state is None or state.ended is None or sys.exception() is not None:  # it ends by that, without a result
        return
    mark, state.ended = state.ended, None
    leave_mark(mark, sender, sender.request.id)


def leave_mark(mark: str, task: Any, task_id: str) -> bool:
    """Mark a message as done; return whether the store has answered."""
    try:
        get_backend().tally(mark, ttl=mark_ttl(task.app))
    except BackendUnavailable as error:
        logger.warning("%s[%s] was not marked as done: %s", task.name, task_id, error)
        return False
    return True


def mark_ttl(app: Any) -> int:
    """Return for how many milliseconds it stays marked that a message has ended."""
    return round(return_time(app) * 1000)


def finished_reason(message: Message) -> str:
    """Return how another delivery of this message ended, if it must not be started again; otherwise an empty text.

    Only results since the publication of the message count, as task ids are reused.
    """
    try:
        meta = message.task.backend.get_task_meta(message.id, cache=False)
        if meta.get("status") == "SUCCESS":
            reason = "it has succeeded"
        elif isinstance(meta.get("result"), CrashLoop):
            reason = "too many workers have died of it"
        else:
            return ""
        backend = type(message.task.backend).__module__
        # Of django-celery-results, in the project's own zone if USE_TZ is off.
        naive = UTC if settings.USE_TZ or backend.startswith("celery.") else get_default_timezone()
        done = seconds_since_1970(meta.get("date_done"), naive)
    except Exception as error:  # no result backend, or it is down: the lock and the guard decide
        logger.debug("%s[%s]: no result could be read: %s", message.task.name, message.id, error)
        return ""
    return reason if done is None or message.published is None or done > message.published - SKEW else ""


def seconds_since_1970(moment: object, zone: tzinfo) -> float | None:
    """Convert a time from a result backend, a datetime or its text. ``zone``: its time zone, if it does not say."""
    if not isinstance(moment, datetime | str):
        return None
    found = maybe_iso8601(moment)
    if not isinstance(found, datetime):
        return None
    return (found if found.tzinfo else found.replace(tzinfo=zone)).timestamp()


def discard(message: Message, why: str, error: TaskLockAcquireError | None = None) -> NoReturn:
    """End this delivery without a result, as that is the other delivery's, but log it. Raises ``Duplicate``."""
    text = f"{message.task.name}[{message.id}] is delivered again: {why}"
    events.conflict(error or TaskLockAcquireError(text), "duplicate")
    raise Duplicate(text)
