"""What a run makes of earlier deliveries of its message: of other processes, of the dead, of its own last try.

What it finds before it has the lock is looked at once more with the lock in hand: of two
deliveries at once the other may have run in between.
"""

from __future__ import annotations

import logging
import os
import time
from abc import ABC, abstractmethod
from typing import Any, NoReturn

from celery._state import get_current_worker_task
from celery.exceptions import Retry

from django_tasklock.celery.delivery import postrun as ended
from django_tasklock.celery.delivery.defer import defer
from django_tasklock.celery.delivery.duplicates import Outcome, ameet, drop, freed, meet
from django_tasklock.celery.delivery.results import succeeded
from django_tasklock.celery.message import Message, visibility_timeout
from django_tasklock.celery.parking import store as parking
from django_tasklock.celery.parking.envelope import seal
from django_tasklock.celery.parking.promotion import ran_here, runs
from django_tasklock.celery.parking.rows import DOWN
from django_tasklock.decorators.call import Running
from django_tasklock.exceptions import CrashLoop
from django_tasklock.locks.holder import me
from django_tasklock.locks.lock import TaskLock

logger = logging.getLogger("django_tasklock")

TAKEOVERS = 3
"""How often a message whose worker died is started again, where its task does not say."""
BRIEFLY = 0.3  # the same where nobody was seen to leave: it would have been just before
SETTLING = 2.0  # seconds after a run has left its lock in which Celery has stored its result


class DeliveredInside(Running):
    """A locked function somewhere inside a task's body: its message is not its own to put aside."""

    lock: TaskLock

    def __init__(self, *what: Any) -> None:
        super().__init__(*what)
        self.message = Message(get_current_worker_task())
        self.died = False
        """An earlier delivery of this message was seen to have died."""
        self.crashed = False
        """And it was this one that freed its lock."""
        self.waited = False
        """Somebody had the lock, and let go of it: perhaps another delivery of this message."""

    def _acquire(self) -> bool:
        if self.lock.acquire(blocking=False):
            return True
        if self._met_myself(meet(self.lock, self.message)):
            return True
        if freed(self.lock.met, self.lock.name) and self.lock.acquire(blocking=False):
            return True
        self.waited = True
        return self.on_conflict == "wait" and self._wait()

    def _wait(self) -> bool:
        return self.lock.acquire()

    async def _aacquire(self) -> bool:
        if await self.lock.aacquire(blocking=False):
            return True
        if self._met_myself(await ameet(self.lock, self.message)):
            return True
        if freed(self.lock.met, self.lock.name) and await self.lock.aacquire(blocking=False):
            return True
        return self.on_conflict == "wait" and await self.lock.aacquire()

    def _met_myself(self, outcome: Outcome) -> bool:
        self.died, self.crashed = outcome.died, outcome.crashed
        self.waited = outcome.given_back
        if outcome.unsure:
            self._put_off()
        return outcome.taken

    def _put_off(self) -> NoReturn:
        defer(self.message, self.lock)


class Redelivered(DeliveredInside, ABC):
    """The run of a task's own body, which may have been begun before."""

    def __init__(self, *what: Any) -> None:
        super().__init__(*what)
        self.name = self.lock.name
        self.task = self.message.task
        self._row: parking.Parked | None = None
        self._looked = False  # whether the row is what the table says, or could not be read
        self._kept = False

    @property
    def _known(self) -> bool:
        """Whether it may have been delivered before, or to somebody else meanwhile.

        Who died is the surest sign: a pool that was not told in time that a child had begun gives the message to the
        next one, and the broker has never heard of it.
        """
        message = self.message
        if message.sent or message.redelivered or message.crashes or self.died:
            return True
        return message.waited > visibility_timeout(self.task.app) / 2

    def _welcome(self) -> bool:
        """Whether a message that has been here before still has something to do. Raises ``Duplicate`` if not."""
        if not self._known:
            return True
        message, before = self.message, self._row
        row = self._look()
        if row is not None and row.state == parking.SUPERSEDED:
            self._superseded()
            return False
        if row is None:
            if message.sent:
                self._drop("its run has ended")
        elif row.state == parking.PARKED or (
            row.state in (parking.PROMOTED, parking.DEAD) and message.sent != row.sent
        ):
            self._drop("it is parked")
        elif row.state in (parking.RUNNING, parking.ENDED) and runs(row):
            if before is None and self._ours and row.state == parking.RUNNING and ran_here(row):
                self._row = None  # written since by another delivery, which met this one: ``_vouch``
            else:
                self._drop("another delivery of it runs")
        return True

    def _look(self) -> parking.Parked | None:
        self._looked = False
        self._row = parking.find(self.message.id)
        self._looked = True
        return self._row

    def _still(self) -> bool:
        """Whether it has something to do, with the lock in hand: ``_welcome``, and no other delivery has done it."""
        if not self._known:
            return True
        try:
            if not self._welcome():
                return False
        except DOWN as error:
            logger.warning("lock %r: earlier deliveries could not be looked at: %s", self.name, error)
        self._drop_if_done()
        return True

    def _drop_if_done(self) -> None:
        """Raise ``Duplicate`` if another delivery has succeeded. One that died cannot have: it left its lock behind."""
        if self.crashed or not (self._known and self.message.wants_result):
            return
        patience = SETTLING if self.waited else BRIEFLY if self.message.redelivered else 0.0
        ends = time.monotonic() + patience
        while not (done := succeeded(self.message)) and time.monotonic() < ends:
            time.sleep(0.05)
        if done:
            self._quietly_forget()
            self._drop("it has succeeded")

    def _drop(self, why: str) -> NoReturn:
        drop(None, self.message, why)

    def _count(self) -> bool:
        """Keep what comes back if this worker dies, once it has been here before, and end a loop of crashes."""
        try:
            if not (self._looked or self._welcome()):  # what could not be read is not what is not there
                return False
            if self._row is not None or self.message.redelivered or self._crashes:
                self._keep()
            self._tell()
        except DOWN as error:
            logger.warning("%s[%s]: its start was not counted: %s", self.task.name, self.message.id, error)
        return True

    def _tell(self) -> None:
        """Take back the state ``PARKED``: acknowledged early and killed, it would say so for ever."""
        message = self.message
        if not (message.sent and message.wants_result):
            return
        now = {"pid": os.getpid(), "hostname": message.request.hostname}
        try:
            self.task.backend.store_result(message.id, now, "STARTED", request=message.request)
        except Exception as error:
            logger.warning("%s[%s]: its state does not say that it runs: %s", self.task.name, message.id, error)

    @property
    def _crashes(self) -> int:
        """How many workers have died of it."""
        row = self._row
        if row is None:
            return self.message.crashes + self.died
        return row.crashes + (self.crashed or row.state == parking.RUNNING)

    def _keep(self) -> None:
        if not self.message.late:
            self._forget()
            return
        crashes = self._crashes
        most = getattr(self.task, "takeovers", TAKEOVERS)
        if crashes > most:
            self._quietly_forget()  # whatever becomes of the row, it is not started again
            text = f"{self.task.name}[{self.message.id}]: {crashes} workers died of it; it is not started again"
            raise CrashLoop(text, name=self.name)
        self._kept = True
        parking.mark_started(*self._what, self._sealed(), me(), crashes)

    @property
    @abstractmethod
    def ticket(self) -> int:
        """Its place in the order of publication."""

    @property
    def _what(self) -> tuple[str, int, str, str, str]:
        return self.name, self.ticket, self.on_conflict, self.task.name, self.message.id

    def _sealed(self) -> str:
        return seal(self.name, self.message.again(put_back=None, ticket=self.ticket), self.task)

    @abstractmethod
    def _superseded(self) -> None:
        """A newer message took this one's place."""

    def _forget(self) -> None:
        self._kept = False
        parking.remove(self.message.id)

    def _quietly_forget(self) -> None:
        try:
            self._forget()
        except Exception as error:
            logger.warning("%s[%s]: its row was not removed: %s", self.task.name, self.message.id, error)

    def _let_go(self, error: BaseException | None) -> None:
        """The run ends: so does its row, unless the broker brings this very message again."""
        if not self.message.returns(error):
            self._close(error)
            return
        try:
            row = parking.find(self.message.id)
            if row is not None:  # the worker stops, it did not die of it
                parking.move_to(row, parking.PROMOTED)
        except Exception as trouble:
            logger.warning("%s[%s]: its row says that it runs: %s", self.task.name, self.message.id, trouble)

    def _close(self, error: BaseException | None) -> None:
        """Its row goes when its result is stored: killed before that, it is neither over nor to be counted a crash."""
        if isinstance(error, Retry) or not self.message.wants_result:  # the next try is another message
            self._quietly_forget()
            return
        try:
            parking.mark_ended(self.message.id)
        except Exception as trouble:
            logger.warning("%s[%s]: its row says that it runs: %s", self.task.name, self.message.id, trouble)
        ended.look_after(self.message.request, sure=True)

    def _put_off(self) -> NoReturn:
        """Defer: from then on the broker has it, with the number of its crashes, and no row has."""
        crashes = self._crashes
        try:
            defer(self.message, self.lock, crashes=(crashes, self.message.retries) if crashes else None)
        except Retry:
            if self._row is not None:
                self._quietly_forget()
            raise
