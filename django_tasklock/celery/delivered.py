"""A run that a worker was sent: it knows its message, its other deliveries, and who is parked for its lock."""

from __future__ import annotations

import logging
from typing import Any, NoReturn

from celery._state import get_current_worker_task

from django_tasklock.backends import get_backend
from django_tasklock.celery import parking
from django_tasklock.celery.busy import Aside, leave_line, postpone, reject, ticket_of
from django_tasklock.celery.envelope import seal
from django_tasklock.celery.message import Message
from django_tasklock.celery.myself import drop, meet
from django_tasklock.celery.promotion import promote, runs, supersede
from django_tasklock.exceptions import BackendUnavailable, CrashLoop, TaskLockAcquireError
from django_tasklock.holders import me
from django_tasklock.reports import told_conflict
from django_tasklock.running import Running

__all__ = ["Delivered", "DeliveredInside"]

logger = logging.getLogger("django_tasklock")

TAKEOVERS = 3
"""How often a message whose worker died is started again, where its task does not say."""


class DeliveredInside(Running):
    """A locked function somewhere inside a task's body: its message is not its own to put aside."""

    def __init__(self, *what: Any) -> None:
        super().__init__(*what)
        self.message = Message(get_current_worker_task())
        self.crashed = False

    def _acquire(self) -> bool:
        if self.lock.acquire(blocking=False):
            return True
        outcome = meet(self.lock, self.message)
        self.crashed = outcome.crashed
        if outcome.unsure:
            postpone(self.message, self.lock)
        return outcome.taken or (self.on_conflict == "wait" and self.lock.acquire())


class Delivered(DeliveredInside):
    """The run of a task's own body."""

    def __init__(self, *what: Any) -> None:
        super().__init__(*what)
        self.name = self.lock.name
        self.task = self.message.task
        self.lines_up = self.on_conflict in ("queue", "coalesce")
        self._row: parking.Parked | None = None
        self._kept = False
        self._ticket = 0

    @property
    def ticket(self) -> int:
        """Its place in the order of publication."""
        if not self._ticket:
            self._ticket = ticket_of(self.message)
        return self._ticket

    def _acquire(self) -> bool:
        if not (self.message.sent or self.message.redelivered or self.lines_up):
            return super()._acquire() and self._count()
        with parking.visit():  # the body may run for hours: it holds no connection that it does not use
            return self._due() and super()._acquire() and self._count()

    def _due(self) -> bool:
        """Whether it is this message's turn; may end it or put it aside. With the database down the lock decides."""
        try:
            return self._welcome() and self._first_in_line()
        except BackendUnavailable as error:
            logger.warning("lock %r: parked messages could not be looked at: %s", self.name, error)
            return True

    def _welcome(self) -> bool:
        """Whether a message that has been here before still has something to do. Raises ``Duplicate`` if not."""
        message = self.message
        if not (message.sent or message.redelivered):
            return True
        row = self._row = parking.find(message.id)
        if row is not None and row.state == parking.SUPERSEDED:
            self._superseded()
            return False
        if row is None:
            if message.sent:
                self._drop("its run has ended")
        elif row.state == parking.PARKED or (row.state == parking.PROMOTED and message.sent != row.sent):
            self._drop("it is parked")
        elif row.state == parking.RUNNING and runs(row):
            self._drop("another delivery of it runs")
        if (message.redelivered or row is not None) and self._succeeded():
            self._forget()
            self._drop("it has succeeded")
        return True

    def _drop(self, why: str) -> NoReturn:
        drop(None, self.message, why)

    def _succeeded(self) -> bool:
        if not self.message.wants_result:
            return False
        try:
            return bool(self.task.backend.get_state(self.message.id) == "SUCCESS")
        except Exception as error:  # no result backend, or one that is down: then the lock and the guard judge
            logger.debug("%s[%s]: no result to look at: %s", self.task.name, self.message.id, error)
            return False

    def _first_in_line(self) -> bool:
        if not self.lines_up:
            return True
        before, after = parking.others(self.name, self.ticket, self.message.id)
        if self.on_conflict == "coalesce":
            if after:
                self._superseded()
            return not after
        if before or self._another_comes():
            error = TaskLockAcquireError(f"lock {self.name!r} is free, but others wait for it", name=self.name)
            told_conflict(error, "queue")
            self._park()
        return True

    def _another_comes(self) -> bool:
        """Whether one that was published before is still on its way. Who was promoted has waited for that already."""
        if self.message.sent:
            return False
        try:
            return get_backend().expects(self.name, self.ticket)
        except BackendUnavailable:
            return False  # then the lock is as good as free, and its policy decides

    def _superseded(self) -> None:
        error = TaskLockAcquireError(f"lock {self.name!r}: a newer message took this one's place", name=self.name)
        told_conflict(error, "coalesce")
        self._forget()
        self.skipped = {"status": "skipped", "reason": "coalesced", "name": self.name}

    def _count(self) -> bool:
        """Keep what comes back if this worker dies, once it has been here before, and end a loop of crashes."""
        row = self._row
        if row is None and not (self.message.redelivered or self.crashed):
            return True
        try:
            self._keep(row)
        except BackendUnavailable as error:
            logger.warning("%s[%s]: its start was not counted: %s", self.task.name, self.message.id, error)
        return True

    def _keep(self, row: parking.Parked | None) -> None:
        if not self.message.late:
            self._forget()
            return
        died = self.crashed or (row is not None and row.state == parking.RUNNING)
        crashes = (row.crashes if row else 0) + died
        most = getattr(self.task, "takeovers", TAKEOVERS)
        if crashes > most:
            self._forget()
            text = f"{self.task.name}[{self.message.id}]: {crashes} workers died of it; it is not started again"
            raise CrashLoop(text, name=self.name)
        self._kept = True
        message = seal(self.name, self.message.again(put_back=None), self._serializer)
        parking.started(
            self.name, self.ticket, self.on_conflict, self.task.name, self.message.id, message, me(), crashes
        )

    @property
    def _serializer(self) -> str:
        return str(self.task.serializer or self.task.app.conf.task_serializer)

    def _forget(self) -> None:
        self._kept = False
        parking.forget(self.message.id)

    def _conflict(self) -> bool:
        error = self._met()
        word = self.on_conflict
        if isinstance(error.__cause__, BackendUnavailable) and word not in ("raise", "wait"):
            return self._skip(error)  # that is what on_unavailable="skip" says
        if word == "reject":
            if self.message.in_canvas:  # a member without a result would leave the others waiting
                return self._skip(error)
            told_conflict(error, "reject")
            reject(error)
        if word == "retry":
            told_conflict(error, "retry")
            postpone(self.message, self.lock)
        if self.lines_up:
            told_conflict(error, word)
            return self._park()
        return super()._conflict()

    def _park(self) -> bool:
        """Keep the message in the database and leave. Parks first and looks at the lock again after that."""
        message = self.message
        try:
            if message.wants_result:  # before it is parked: later it may have run already
                self.task.backend.store_result(message.id, {"name": self.name}, "PARKED", request=message.request)
            text = seal(self.name, message.again(put_back=None), self._serializer)
            parking.park(self.name, self.ticket, self.on_conflict, self.task.name, message.id, text)
            if self.queue_limit is not None and parking.places(self.name, message.id) >= self.queue_limit:
                parking.forget(message.id)
                text = f"lock {self.name!r}: {self.queue_limit} messages are parked for it, its queue_limit"
                raise TaskLockAcquireError(text, name=self.name)
        except BackendUnavailable as error:
            logger.warning("lock %r: the message could not be parked, the broker keeps it: %s", self.name, error)
            postpone(message, self.lock)
        if self.on_conflict == "coalesce":
            # Looks after it was parked, so that of two that are parked at once the older one sees the newer.
            if parking.others(self.name, self.ticket, message.id)[1]:
                self._superseded()
                return False
            row = parking.find(message.id)
            if row is not None:
                supersede(row, self.task.app)
        leave_line(self.name, message.id)
        self._wave()
        promote(self.name, self.task.app)
        raise Aside(f"parked behind lock {self.name!r}")

    def _wave(self) -> None:
        """Let the holder know, whose task may not look for parked messages of itself."""
        try:
            get_backend().flag(self.name)
        except BackendUnavailable as error:
            logger.warning("lock %r: its holder was not told of the parked message: %s", self.name, error)

    def _exit(self, *how: Any) -> None:
        ours = self._ours
        try:
            if ours:
                self._clear()
        finally:  # a time limit may strike in there
            self._leave(ours, *how)

    def _clear(self) -> None:
        """Before the release: who finds the lock free finds neither a row nor a place in the line of ours."""
        if self.on_conflict == "queue":
            leave_line(self.name, self.message.id)
        if self._kept:
            try:
                self._forget()
            except Exception as error:
                logger.warning("%s[%s]: its row was not removed: %s", self.task.name, self.message.id, error)

    def _leave(self, ours: bool, *how: Any) -> None:
        super()._exit(*how)
        if ours and self.lines_up:
            promote(self.name, self.task.app)
