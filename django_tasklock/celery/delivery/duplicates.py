"""The earlier deliveries of a message, as one delivery sees them: in the lock, in marks beside it, and by their result.

A message is never skipped because it was delivered before: a worker that died leaves its lock behind, and to skip what
comes back would acknowledge work that is never done. So a delivery that meets its own message in the lock takes over
from a dead process, and leaves the work to a living one. Most messages are delivered once, and leave no mark:

* ``again:<message>``: a second delivery has met the first, which is alive, and comes again later.
* ``done:<message>``: the first has ended, and its result is stored. It found that mark, or had lost the lock before.
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
from django_tasklock.celery.delivery.defer import defer, send_again
from django_tasklock.celery.message import Message
from django_tasklock.celery.state import STATE, Duplicate, state_of
from django_tasklock.decorators.rows import GuardedRow
from django_tasklock.exceptions import BackendUnavailable, CrashLoop, LockLost, StaleClaim, TaskLockAcquireError
from django_tasklock.locks import events
from django_tasklock.locks.holder import alive
from django_tasklock.locks.lease import Lease, Refusal
from django_tasklock.locks.lock import TaskLock
from django_tasklock.names import of_tenant, with_tenant
from django_tasklock.types import Record

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
        try:
            get_backend().tally(f"again:{self.mark}")
        except BackendUnavailable as error:  # without the mark, the result decides
            logger.warning("%s: it is not marked as delivered again: %s", self._who, error)
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
        try:
            done = get_backend().tally(f"done:{self.mark}", 0)
        except BackendUnavailable as error:
            done = 0
            logger.warning("%s: it is not known whether it is done: %s", self._who, error)
        reason = "it has ended" if done else self._result()
        if reason:
            discard(self.message, reason)

    def _result(self) -> str:
        """Return how another delivery ended, by the result backend: looked at once, unless it may come any moment."""
        ends = time.monotonic() + (RESULT_WAIT if self.waited and self.message.wants_result else 0.0)
        while not (reason := finished_reason(self.message)) and time.monotonic() < ends:
            time.sleep(0.05)
        return reason

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

        The first start of a message is not counted when it is made. Raises ``BackendUnavailable``.
        """
        if not get_backend().tally(f"starts:{self.mark}", 0):
            get_backend().tally(f"starts:{self.mark}")

    def end(self, error: BaseException | None, seen: bool | None, lost: bool) -> None:
        """Take the count back, as the run has ended in order; have the message marked as done where that is awaited.

        ``seen``: whether the mark of a delivery that comes again was found at the release; ``None``: unknown.
        ``lost``: whether the lock had ended before, so that the message may have been delivered again, without a mark.
        """
        if lost and isinstance(error, StaleClaim | LockLost):
            return  # another delivery has the work, and this one stays counted: each might overtake the one before
        if self._starts and (self.row_failed or not isinstance(error, CrashLoop)):  # else others may come
            try:
                get_backend().tally(self._counter, -self._starts)
            except BackendUnavailable as trouble:
                logger.warning("%s: it stays counted as started: %s", self._who, trouble)
        message = self.message
        continues = message.will_be_redelivered(error) or self._was_sent_again(error)
        if self.comes_again and not continues and (lost or seen is not False):
            state_of(message.request).ended = self.mark, bool(lost or seen)

    @staticmethod
    def _was_sent_again(error: BaseException | None) -> bool:
        """Return whether the same try was sent again, by ``defer`` or for its turn. Celery's retry has a signature."""
        return isinstance(error, Retry) and getattr(error, "sig", None) is None

    @property
    def _who(self) -> str:
        return f"{self.message.task.name}[{self.message.id}]"


def on_postrun(sender: Any = None, **details: Any) -> None:
    """Mark a message as done, for a delivery that comes again, now that its result is stored (``task_postrun``).

    A crash before that needs another run.
    """
    state = sender.request.__dict__.get(STATE)
    if state is None or state.ended is None or sys.exception() is not None:  # it ends by that, without a result
        return
    (mark, is_sure), state.ended = state.ended, None
    try:
        if is_sure or get_backend().tally(f"again:{mark}", 0):
            get_backend().tally(f"done:{mark}")
    except BackendUnavailable as error:
        logger.warning("%s[%s] was not marked as done: %s", sender.name, sender.request.id, error)


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
