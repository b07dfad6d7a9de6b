"""The history of a message: what its earlier deliveries have left in the table, in the lock, in the result backend.

What is found before the lock is taken is looked at once more with the lock in hand: of two deliveries at once the
other may have run in between.
"""

from __future__ import annotations

import logging
import os
import time
from functools import cached_property
from typing import NoReturn

from celery.exceptions import Ignore, Retry

from django_tasklock.backends import get_backend
from django_tasklock.backends.codec import holder_of, json_object, text_of
from django_tasklock.celery.delivery import postrun
from django_tasklock.celery.delivery.defer import defer
from django_tasklock.celery.delivery.duplicates import Attempt, discard_duplicate
from django_tasklock.celery.delivery.results import how_it_ended
from django_tasklock.celery.message import Message
from django_tasklock.celery.parking import order, store as parking
from django_tasklock.celery.parking.envelope import seal
from django_tasklock.celery.parking.promotion import ran_here, runs
from django_tasklock.celery.parking.rows import (
    DEAD,
    DOWN,
    ENDED,
    PARKED,
    PROMOTED,
    RUNNING,
    SUPERSEDED,
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
"""The number of times that a message whose worker died is started again, where its task does not say."""
BRIEFLY = 0.3  # seconds in which Celery has stored the result of a run that nobody was seen to leave
SETTLING = 2.0  # the same after a run has left its lock


class Entry:
    """The row of a message, as it is written: its columns, and the message as text."""

    def __init__(self, message: Message, name: str, on_conflict: str) -> None:
        self.message = message
        self.name = name
        self.on_conflict = on_conflict

    @cached_property
    def number(self) -> int:
        """The sequence number of the message, drawn on arrival where its publisher drew none."""
        return order.number_of(self.message, self.name if self.on_conflict == "queue" else "")

    @property
    def columns(self) -> tuple[str, int, str, str, str]:
        """The columns that say which message it is."""
        return self.name, self.number, self.on_conflict, self.message.task.name, self.message.id

    def sealed(self) -> str:
        """Return the message itself as text."""
        again = self.message.again(put_back=None, ticket=self.number)
        return seal(self.name, again, self.message.task)


class History:
    """The earlier deliveries of a message, as one delivery knows them, and the row that this one leaves."""

    def __init__(self, message: Message, lock: TaskLock, on_conflict: str) -> None:
        self.message = message
        self.lock = lock
        self.entry = Entry(message, lock.name, on_conflict)
        self.known = message.delivered_before
        """True if the message may have been delivered before, or to somebody else meanwhile."""
        self.row: ParkedRow | None = None
        self.looked = False
        """True if ``row`` is what the table says; else that was not read, or could not be."""
        self.kept = False
        """True if this run has a row, which goes with it."""
        self._past = Attempt()

    def learn(self, attempt: Attempt) -> None:
        """Note what the attempt to take the lock has shown.

        Who died is the surest sign: a pool that was not told in time that a child had begun gives the message to the
        next one, and the broker has never heard of it.
        """
        self._past = attempt
        self.known = attempt.died or self.message.delivered_before

    def has_work(self, *, locked: bool = False) -> bool:
        """Return False if a newer message took its place. Raises ``Duplicate`` if it is over, or somebody else's.

        ``locked``: the lock is ours.
        """
        if not self.known:
            return True
        message, before = self.message, self.row
        row = self.look()
        if row is None:
            if message.sent:
                self.discard("its run has ended")
        elif row.state == SUPERSEDED:
            return False
        elif row.state == PARKED or (row.state in (PROMOTED, DEAD) and message.sent != row.sent):
            self.discard("it is parked")
        elif row.state in (RUNNING, ENDED) and runs(row):
            if before is None and locked and row.state == RUNNING and ran_here(row):
                self.row = None  # written since by another delivery, which met this one: ``record_running``
            else:
                self.discard("another delivery of it runs")
        return True

    def look(self) -> ParkedRow | None:
        """Read the row."""
        self.looked = False
        self.row = parking.find(self.message.id)
        self.looked = True
        return self.row

    def discard_if_done(self) -> None:
        """Raise ``Duplicate`` if another delivery has succeeded, or found that too many workers had died of it.

        One that died has done neither: it left its lock behind. But somebody else may have put the message back.
        """
        if not (self.known and self.message.wants_result) or (self._past.freed and self.row is not None):
            return
        patience = SETTLING if self._past.waited else BRIEFLY if self.message.redelivered else 0.0
        ends = time.monotonic() + (0.0 if self._past.freed else patience)
        while not (how := how_it_ended(self.message)) and time.monotonic() < ends:
            time.sleep(0.05)
        if how:
            self.forget()
            self.discard(how)

    def discard(self, why: str) -> NoReturn:
        """End this delivery: the message is another one's. Raises ``Duplicate``."""
        discard_duplicate(None, self.message, why)

    @property
    def crashes(self) -> int:
        """The number of workers that have died of the message, each counted once.

        The row names the process that ran it last, whose death is counted by whoever finds it running or puts it
        back. So whoever has freed the lock of that same process does not count it once more.
        """
        row, freed = self.row, self._past.freed
        if row is None:
            return self.message.crashes + max(self._past.died, len(freed))
        last = holder_of(json_object(row.holder)).boot
        return row.crashes + (row.state == RUNNING) + len(freed - {last} if last else freed)

    @property
    def promoted(self) -> bool:
        """True if the row says that this is the delivery which a promoter has sent, and nobody has died of it since."""
        row = self.row
        return row is not None and row.state == PROMOTED and row.sent == self.message.sent

    def start_promoted(self) -> bool:
        """Count the start of a promoted message, with the lock in hand. Return False if there is more to look at.

        One statement in place of a look and a write: a row that is as it was when last seen needs no other look.
        """
        row, message = self.row, self.message
        if row is None or not self.promoted or self._past.freed or row.crashes > self._takeovers:
            return False
        if message.acks_late:
            self.kept = parking.start(row, holder_json())
            started = self.kept
        else:
            started = parking.remove_unchanged(row)
        if started:
            self.discard_if_done()
            self._tell()
        return started

    @property
    def _takeovers(self) -> int:
        return int(getattr(self.message.task, "takeovers", TAKEOVERS))

    def count_start(self) -> None:
        """Keep what comes back if this worker dies, once it has been here before. Raises ``CrashLoop``."""
        if self.row is not None or self.message.redelivered or self.crashes:
            self._keep()
        self._tell()

    def _keep(self) -> None:
        message = self.message
        if not message.acks_late:
            self.kept = False
            parking.remove(message.id)
            return
        crashes = self.crashes
        looped = crashes > self._takeovers
        self.kept = True
        try:
            # Also if it is not started again: until that is its result, it is what another delivery of it finds.
            parking.mark_started(*self.entry.columns, self.entry.sealed(), holder_json(), crashes)
        except DOWN as error:
            if not looped:
                raise
            logger.warning("%s[%s]: its row does not say that it ends: %s", message.task.name, message.id, error)
        if looped:
            text = f"{message.task.name}[{message.id}]: {crashes} workers died of it; it is not started again"
            raise CrashLoop(text, name=self.entry.name)

    def _tell(self) -> None:
        """Take back the state ``PARKED``: acknowledged early and killed, it would say so for ever."""
        message = self.message
        if not (message.sent and message.wants_result):
            return
        now = {"pid": os.getpid(), "hostname": message.request.hostname}
        try:
            message.task.backend.store_result(message.id, now, "STARTED", request=message.request)
        except Exception as error:
            logger.warning("%s[%s]: its state does not say that it runs: %s", message.task.name, message.id, error)

    def record_running(self) -> bool:
        """Keep the message while the other delivery runs it: with this one the broker's copy is acknowledged.

        Return False if that has ended meanwhile and nobody has the message but this one.
        """
        message, met = self.message, self.lock.met
        if met is None or met.holder.retries != message.tries:  # a later try has a message of its own
            return True
        try:
            with brief_connection():
                parking.record_running(*self.entry.columns, self.entry.sealed(), text_of(met.holder))
                get_backend().flag(postrun.AGAIN + message.id)
                now = self._record()
                if now is None or now.token != met.token:  # it has ended, and may not have seen the note
                    parking.remove(message.id, of=met.holder.boot)
                    message.delivered_before = True
                    return now is not None and now.holder.task_id == message.id
        except DOWN as error:
            logger.warning("%s[%s]: only its other delivery has it now: %s", message.task.name, message.id, error)
        return True

    def close(self, error: BaseException | None, token: str) -> None:
        """End the row of a run that ended with ``error``, unless the broker brings this very message again.

        ``token``: of the lock that it had, or has.
        """
        message = self.message
        try:
            if message.returns(error):
                row = parking.find(message.id)
                # The worker stops, it did not die of it. In this order: who begins it after that changes the row.
                if row is not None and ran_here(row) and not self._begun_again(token):
                    parking.move_to(row, PROMOTED)
                return
            if isinstance(error, Retry) or not message.wants_result:  # the next try is another message
                self.forget()
                return
            if isinstance(error, Ignore) and state_of(message.request).replaced:
                # Before the lock is free: its next page, which has its id, may be parked then. Not if that is already.
                self.kept = False
                parking.remove(message.id, of=holders.BOOT)
                return
            # It goes when the result is stored: killed before that, it is neither over nor to be counted a crash.
            postrun.clean_up_after(message.request, sure=True)
            parking.mark_ended(message.id)
        except Exception as trouble:
            logger.warning("%s[%s]: its row says that it runs: %s", message.task.name, message.id, trouble)

    def _begun_again(self, token: str) -> bool:
        """Return whether another delivery of it has the lock by now: in a pool of threads, the row is that one's."""
        try:
            now = self._record()
        except BackendUnavailable:  # else it would seem to run for as long as this process lives
            return False
        holder = None if now is None or now.token == token else now.holder
        return holder is not None and (holder.task, holder.task_id) == (self.message.task.name, self.message.id)

    def _record(self) -> Record | None:
        """Read who has the lock; of several names whoever has the first, for they are taken together."""
        return get_backend().get(each_of(self.entry.name)[0])

    def forget(self) -> None:
        """Remove the row, if that can be done."""
        self.kept = False
        try:
            parking.remove(self.message.id)
        except Exception as error:
            logger.warning("%s[%s]: its row was not removed: %s", self.message.task.name, self.message.id, error)

    def put_off(self) -> NoReturn:
        """Defer the message: from then on the broker has it, with the number of its crashes, and no row has."""
        crashes = self.crashes
        try:
            defer(self.message, self.lock, crashes=(crashes, self.message.retries) if crashes else None)
        except Retry:
            if self.row is not None:
                self.forget()
            raise
