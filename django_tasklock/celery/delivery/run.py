"""A run that a worker was sent: it knows its message, its other deliveries, and who is parked for its lock."""

from __future__ import annotations

import logging
from typing import Any

from django_tasklock.backends import get_backend
from django_tasklock.backends.codec import text_of
from django_tasklock.celery.delivery import postrun as ended
from django_tasklock.celery.delivery.defer import reject
from django_tasklock.celery.delivery.duplicates import freed
from django_tasklock.celery.delivery.redelivery import Redelivered
from django_tasklock.celery.exceptions import Duplicate, Parked
from django_tasklock.celery.parking import order, store as parking
from django_tasklock.celery.parking.promotion import promote, supersede
from django_tasklock.celery.parking.rows import DOWN
from django_tasklock.celery.rates.reservations import cancel_reservation
from django_tasklock.exceptions import BackendUnavailable, TaskLockAcquireError
from django_tasklock.locks import events

logger = logging.getLogger("django_tasklock")


class Delivered(Redelivered):
    """The run of a task's own body."""

    def __init__(self, *what: Any) -> None:
        super().__init__(*what)
        self.lines_up = self.on_conflict in ("queue", "coalesce")
        self._ticket = 0
        self._alone = False

    @property
    def ticket(self) -> int:
        """Its place in the order of publication."""
        if not self._ticket:
            self._ticket = order.number_of(self.message, self.name if self.on_conflict == "queue" else "")
        return self._ticket

    def _acquire(self) -> bool:
        if not (self.lines_up or self._known):
            return self._take() and self._go()
        return self._due() and self._take() and self._go()

    def _take(self) -> bool:
        try:
            taken = super()._acquire()
        except Duplicate:
            if self.message.late:
                self._vouch()
            raise
        if taken and self.message.late:
            # That another delivery has kept a row for it, it would have noted.
            ended.look_after(self.message.request, sure=bool(self.message.sent))
        return taken

    def _vouch(self) -> None:
        """Keep the message while the other delivery runs it: with this one the broker's copy is acknowledged."""
        met = self.lock.met
        if met is None or met.holder.retries != self.message.tries:  # a later try has a message of its own
            return
        try:
            with parking.brief_connection():
                parking.record_running(*self._what, self._sealed(), text_of(met.holder))
                get_backend().flag(ended.AGAIN + self.message.id)
                now = get_backend().get(self.name)
                if now is None or now.token != met.token:  # it has ended, and may not have seen the note
                    parking.remove(self.message.id, of=met.holder.boot)
        except DOWN as error:
            logger.warning("%s[%s]: only its other delivery has it now: %s", self.task.name, self.message.id, error)

    def _go(self) -> bool:
        return not self._known or (self._still() and self._count())

    def _due(self) -> bool:
        """Whether it is this message's turn; may end it or put it aside. With the database down the lock decides."""
        try:
            return self._welcome() and self._first_in_line()
        except DOWN as error:
            logger.warning("lock %r: parked messages could not be looked at: %s", self.name, error)
            return True

    def _first_in_line(self) -> bool:
        if not self.lines_up:
            return True
        if self.on_conflict == "queue" and self.message.sent:
            return True  # whoever put it back has looked; and may have stepped over one that no worker takes
        if self.on_conflict == "coalesce":
            neighbours = parking.read_neighbours(self.name, self.ticket, self.message.id)
            if neighbours.newer or self._outdated():
                self._superseded()
                return False
            supersede(neighbours.older, self.task.app)
            return True
        # Where the store has a line, that has the parked ones, too.
        if self._expected() if get_backend().lines else parking.has_older(self.name, self.ticket):
            error = TaskLockAcquireError(f"lock {self.name!r} is free, but others wait for it", name=self.name)
            events.conflict(error, "queue")
            self._park()
        return True

    def _expected(self) -> bool:
        """Whether one that was published before is not over. Who was promoted has waited for that already."""
        try:
            return get_backend().expects(self.name, self.ticket) > 0
        except BackendUnavailable:
            return False  # then the lock is as good as free, and its policy decides

    def _outdated(self) -> bool:
        """Whether one that was published later has arrived before, and may have run already."""
        try:
            return not get_backend().newest(self.name, self.ticket)
        except BackendUnavailable:
            return False

    def _superseded(self) -> None:
        error = TaskLockAcquireError(f"lock {self.name!r}: a newer message took this one's place", name=self.name)
        events.conflict(error, "coalesce")
        row = parking.find(self.message.id)
        if row is not None:  # it stays until the result is stored
            if row.state != parking.SUPERSEDED:
                parking.move_to(row, parking.SUPERSEDED)
            ended.look_after(self.message.request, sure=True)
        if self._known:
            self._free_what_died()
        self.skipped = {"status": "skipped", "reason": "coalesced", "name": self.name}

    def _free_what_died(self) -> None:
        """An earlier delivery of it may have begun, and died: whoever took its place need not wait for that lease."""
        try:
            record = get_backend().get(self.name)
            if record is not None and record.holder.task_id == self.message.id and freed(record, self.name):
                promote(self.name, self.task.app)
        except BackendUnavailable as error:
            logger.warning("lock %r is left to its lease: %s", self.name, error)

    def _conflict(self) -> bool:
        error = self._met()
        word = self.on_conflict
        self._drop_if_done()
        if isinstance(error.__cause__, BackendUnavailable) and word not in ("raise", "wait"):
            return self._skip(error)  # that is what on_unavailable="skip" says
        if word in ("skip", "reject") and self.message.retries:  # its work has begun
            word = "retry"
        if word == "reject":
            if self.message.in_canvas:  # a member without a result would leave the others waiting
                return self._skip(error)
            events.conflict(error, "reject")
            reject(error, self.message)
        if word == "retry":
            events.conflict(error, "retry")
            self._put_off()
        if self.lines_up:
            events.conflict(error, word)
            return self._park()
        return super()._conflict()

    def _park(self) -> bool:
        """Keep the message in the database and leave. Parks first and looks at the lock again after that."""
        message = self.message
        cancel_reservation(self.task, message.request)
        try:
            if self._known and not self._looked:
                self._look()
            shown = message.wants_result
            kept = parking.park(
                *self._what,
                self._sealed(),
                limit=self.queue_limit,
                crashes=self._crashes,
                moving=shown,
                fresh=not self._known,
            )
            if not kept:
                order.leave(self.name, message.id)
                text = f"lock {self.name!r}: {self.queue_limit} messages are parked for it, its queue_limit"
                raise TaskLockAcquireError(text, name=self.name)
            if shown:
                self._show()
                if not parking.mark_parked(message.id, message.sent) and self._is_superseded():
                    self._superseded()
                    return False
        except DOWN as error:
            logger.warning("lock %r: the message could not be parked, the broker keeps it: %s", self.name, error)
            order.leave(self.name, message.id)
            self._put_off()
        if self.on_conflict == "coalesce":
            # Looks after it was parked, so that of two that are parked at once the older one sees the newer.
            neighbours = parking.read_neighbours(self.name, self.ticket, message.id)
            if neighbours.newer:
                self._superseded()
                return False
            supersede(neighbours.older, self.task.app)
        if not self._wave():
            promote(self.name, self.task.app)
        raise Parked(f"parked behind lock {self.name!r}")

    def _show(self) -> None:
        """Store the state ``PARKED``, for people. It is parked by then, and its line waits a while for this: were it
        promoted first, it might have run already, and its result be written over."""
        message = self.message
        try:
            self.task.backend.store_result(message.id, {"name": self.name}, "PARKED", request=message.request)
        except Exception as error:
            logger.warning("%s[%s] is parked, which its state does not say: %s", self.task.name, message.id, error)

    def _is_superseded(self) -> bool:
        row = parking.find(self.message.id)
        return row is not None and row.state == parking.SUPERSEDED

    def _wave(self) -> bool:
        """Let the holder know, whose task may not look for parked messages of itself; whether there is one for sure."""
        try:
            return get_backend().flag(self.name)
        except BackendUnavailable as error:
            logger.warning("lock %r: its holder was not told of the parked message: %s", self.name, error)
            return False

    def _exit(self, *how: Any) -> None:
        ours = self._ours
        try:
            if ours:
                self._clear(how[1])
        finally:  # a time limit may strike in there
            self._leave(ours, *how)

    def _clear(self, error: BaseException | None) -> None:
        """Before the release: who finds the lock free finds neither a row nor a place in the line of ours."""
        if self.on_conflict == "queue":
            # Who was promoted looks in any case: a flush may have emptied the line that others are parked in.
            self._alone = not order.leave(self.name, self.message.id) and not self.message.sent
        if self._kept:
            self._let_go(error)

    def _leave(self, ours: bool, *how: Any) -> None:
        super()._exit(*how)
        if ours and self.lines_up and not self._alone:
            promote(self.name, self.task.app)
