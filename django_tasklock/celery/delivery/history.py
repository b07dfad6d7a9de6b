"""The history of a message: traces of its earlier deliveries in the table, in the lock and in the result backend.

What is found before the lock is acquired is checked again while it is held: of two simultaneous deliveries the other
one may have run in between.
"""

from __future__ import annotations

import logging
import time
from functools import cached_property
from typing import Any, NoReturn

from celery.exceptions import Ignore, Retry

from django_tasklock.backends import get_backend
from django_tasklock.backends.contract.codec import holder_of, json_object, text_of
from django_tasklock.celery.delivery import postrun
from django_tasklock.celery.delivery.defer import defer
from django_tasklock.celery.delivery.duplicates import Attempt, discard_duplicate
from django_tasklock.celery.delivery.results import finished_reason
from django_tasklock.celery.message import Message
from django_tasklock.celery.parking import order, store as parking
from django_tasklock.celery.parking.envelope import seal
from django_tasklock.celery.parking.promotion import is_running, ran_here
from django_tasklock.celery.parking.rows import (
    DEAD,
    DOWN,
    ENDED,
    PARKED,
    PROMOTED,
    RUNNING,
    ParkedRow,
    brief_connection,
)
from django_tasklock.celery.state import state_of
from django_tasklock.exceptions import BackendUnavailable, CrashLoop
from django_tasklock.locks import holder as holders
from django_tasklock.locks.holder import holder_json
from django_tasklock.locks.lock import TaskLock
from django_tasklock.names import each_of
from django_tasklock.types import Record

logger = logging.getLogger("django_tasklock")

TAKEOVERS = 3
"""The default number of times that a message whose worker died is started again."""
RESULT_WAIT = 0.3  # seconds to wait for the result of a run whose end was not observed
RESULT_WAIT_AFTER_RELEASE = 2.0  # the same after a run was seen to release its lock


class Entry:
    """The row to be written for a message: its columns, and the message as text."""

    def __init__(self, message: Message, name: str, on_conflict: str) -> None:
        self.message = message
        self.name = name
        self.on_conflict = on_conflict

    @cached_property
    def number(self) -> int:
        """The sequence number of the message, drawn on arrival if its publisher drew none."""
        return order.number_of(self.message, self.name if self.on_conflict == "queue" else "")

    @property
    def columns(self) -> tuple[str, int, str, str, str]:
        """The columns that identify the message."""
        return self.name, self.number, self.on_conflict, self.message.task.name, self.message.id

    def sealed(self) -> str:
        """Return the message as text."""
        signature = self.message.to_signature(put_back=None, ticket=self.number)
        return seal(self.name, signature, self.message.task)


class History:
    """The earlier deliveries of a message, as one delivery sees them, and the row that this one writes."""

    def __init__(self, message: Message, lock: TaskLock, on_conflict: str) -> None:
        self.message = message
        self.lock = lock
        self.entry = Entry(message, lock.name, on_conflict)
        self.maybe_redelivered = message.delivered_before
        """Whether the message may have been delivered before, or elsewhere meanwhile."""
        self.row: ParkedRow | None = None
        self.row_was_read = False
        """Whether the row was read successfully the last time."""
        self.has_row = False
        """Whether this run has a row, which ends with it."""
        self._attempt = Attempt()

    def record_attempt(self, attempt: Attempt) -> None:
        """Store the result of the attempt to acquire the lock.

        A dead holder is the surest sign of an earlier delivery: a pool that does not learn in time that a child has
        begun passes the message to the next child, and the broker does not notice.
        """
        self._attempt = attempt
        self.maybe_redelivered = attempt.holder_died or self.message.delivered_before

    def check_work(self, *, locked: bool = False) -> None:
        """Raise ``Duplicate`` if the message has ended, or another delivery has it. ``locked``: the lock is held."""
        if not self.maybe_redelivered:
            return
        message, before = self.message, self.row
        row = self.read_row()
        if row is None:
            if message.sent:
                self.discard("its run has ended")
        elif row.state == PARKED or (row.state in (PROMOTED, DEAD) and message.sent != row.sent):
            self.discard("it is parked")
        elif row.state in (RUNNING, ENDED) and is_running(row):
            if before is None and locked and row.state == RUNNING and ran_here(row):
                self.row = None  # written by another delivery that found this one's lock: ``record_running``
            else:
                self.discard("another delivery of it runs")

    def read_row(self) -> ParkedRow | None:
        """Read the row."""
        self.row_was_read = False
        self.row = parking.find(self.message.id)
        self.row_was_read = True
        return self.row

    def discard_if_done(self) -> None:
        """Raise ``Duplicate`` if another delivery succeeded, or failed because too many workers died.

        A delivery that died did neither, since it left its lock behind. But it may have been put back by a promoter.
        """
        attempt = self._attempt
        if not (self.maybe_redelivered and self.message.wants_result) or (attempt.freed_boots and self.row is not None):
            return
        if attempt.freed_boots:
            patience = 0.0
        elif attempt.released_meanwhile:
            patience = RESULT_WAIT_AFTER_RELEASE
        else:
            patience = RESULT_WAIT if self.message.redelivered else 0.0
        ends = time.monotonic() + patience
        while not (reason := finished_reason(self.message)) and time.monotonic() < ends:
            time.sleep(0.05)
        if reason:
            self.remove_row()
            if self.entry.on_conflict == "queue":  # it may have drawn a number on arrival, for which others would wait
                order.leave(self.entry.name, self.message.id)
            self.discard(reason)

    def discard(self, reason: str) -> NoReturn:
        """End this delivery, as the message belongs to another one. Raises ``Duplicate``."""
        discard_duplicate(None, self.message, reason)

    @property
    def crashes(self) -> int:
        """The number of workers that died of the message, each counted once.

        The row names the process that ran it last. Its death is counted when the row is found running or is put back,
        so freeing the lock of that same process does not count again.
        """
        row, freed_boots = self.row, self._attempt.freed_boots
        if row is None:
            return self.message.crashes + max(self._attempt.holder_died, len(freed_boots))
        last = holder_of(json_object(row.holder)).boot
        return row.crashes + (row.state == RUNNING) + len(freed_boots - {last} if last else freed_boots)

    @property
    def is_promoted(self) -> bool:
        """Whether this is the delivery that a promoter sent, by the row, and no worker has died of it since."""
        row = self.row
        return row is not None and row.state == PROMOTED and row.sent == self.message.sent

    def start_promoted(self) -> bool:
        """Count the start of a promoted message while the lock is held. Return False if more must be checked.

        This takes one statement instead of a read and a write: a row that is unchanged need not be read again.
        """
        row, message = self.row, self.message
        if row is None or not self.is_promoted or self._attempt.freed_boots or row.crashes > self._takeovers:
            return False
        if message.acks_late:
            self.has_row = parking.start(row, holder_json())
            started = self.has_row
        else:
            started = parking.remove_unchanged(row)
        if started:
            self.discard_if_done()
        return started

    @property
    def _takeovers(self) -> int:
        return int(getattr(self.message.task, "takeovers", TAKEOVERS))

    def count_start(self) -> None:
        """Keep a message that was delivered before, in case this worker dies. Raises ``CrashLoop``."""
        if self.row is not None or self.message.redelivered or self.crashes:
            self._write_row()

    def _write_row(self) -> None:
        message = self.message
        if not message.acks_late:
            self.has_row = False
            parking.remove(message.id)
            return
        crashes = self.crashes
        is_crash_loop = crashes > self._takeovers
        self.has_row = True
        try:
            # Also if it is not started again: another delivery finds the row until the result is stored.
            parking.mark_started(*self.entry.columns, self.entry.sealed(), holder_json(), crashes)
        except DOWN as error:
            if not is_crash_loop:
                raise
            logger.warning(
                "%s[%s]: its row was not updated before it ends with CrashLoop: %s",
                message.task.name,
                message.id,
                error,
            )
        if is_crash_loop:
            text = f"{message.task.name}[{message.id}]: {crashes} workers died of it; it is not started again"
            raise CrashLoop(text, name=self.entry.name)

    def record_running(self) -> bool:
        """Write a row while the other delivery runs, because with this one the broker's copy is acknowledged.

        Return False if the other delivery has ended meanwhile, so that only this one has the message.
        """
        message, met = self.message, self.lock.busy_record
        if met is None or met.holder.retries != message.try_number:  # another try has its own message
            return True
        try:
            with brief_connection():
                parking.record_running(*self.entry.columns, self.entry.sealed(), text_of(met.holder))
                get_backend().set_flag(postrun.ROW_FLAG + message.id)
                now = self._record()
                if now is None or now.token != met.token:  # it has ended, and may not have seen the flag
                    parking.remove(message.id, of=met.holder.boot)
                    message.delivered_before = True
                    return now is not None and now.holder.task_id == message.id
        except DOWN as error:
            logger.warning(
                "%s[%s]: its row was not written, so only its other delivery has it: %s",
                message.task.name,
                message.id,
                error,
            )
        return True

    def close(self, error: BaseException | None, token: str) -> None:
        """End the row of a run that ended with ``error``, unless the broker redelivers the message.

        ``token``: the token of the lock of the run.
        """
        message = self.message
        try:
            if message.will_be_redelivered(error):
                row = parking.find(message.id)
                # The worker stops; this is no crash. Check the lock after reading the row, which a later start changes.
                if row is not None and ran_here(row) and not self._was_restarted(token):
                    parking.move_to(row, PROMOTED)
                return
            if isinstance(error, Retry) or not message.wants_result:  # the next try is another message
                self.remove_row()
                return
            if isinstance(error, Ignore) and state_of(message.request).replaced:
                # Before the release, after which its next page, with the same id, may be parked. A parked row stays.
                self.has_row = False
                parking.remove(message.id, of=holders.boot())
                return
            # Removed once the result is stored: a worker killed before that has neither ended it nor crashed of it.
            state_of(message.request).remove_row = True
            parking.mark_ended(message.id)
        except Exception as trouble:
            logger.warning("%s[%s]: its row was not closed: %s", message.task.name, message.id, trouble)

    def _was_restarted(self, token: str) -> bool:
        """Return whether another delivery has the lock by now. In a pool of threads the row then belongs to it."""
        try:
            now = self._record()
        except BackendUnavailable:  # otherwise it would seem to run as long as this process is alive
            return False
        holder = None if now is None or now.token == token else now.holder
        return holder is not None and (holder.task, holder.task_id) == (self.message.task.name, self.message.id)

    def _record(self) -> Record | None:
        """Read the record of the lock; of several names the first, as they are acquired together."""
        return get_backend().get(each_of(self.entry.name)[0])

    def remove_row(self) -> None:
        """Remove the row, if possible."""
        self.has_row = False
        try:
            parking.remove(self.message.id)
        except Exception as error:
            logger.warning("%s[%s]: its row was not removed: %s", self.message.task.name, self.message.id, error)

    def defer(self, **how: Any) -> NoReturn:
        """Defer the message: the broker then has it with its number of crashes, and it has no row."""
        crashes = self.crashes
        try:
            defer(self.message, self.lock, crashes=(crashes, self.message.retries) if crashes else None, **how)
        except Retry:
            if self.row is not None:
                self.remove_row()
            raise
