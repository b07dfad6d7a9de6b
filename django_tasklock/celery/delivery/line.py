"""A message's place among those that wait for its lock in the database: ``queue`` and ``coalesce``."""

from __future__ import annotations

import logging
from functools import cached_property
from typing import Any, NoReturn

from django_tasklock.backends import get_backend
from django_tasklock.backends.database.names import key_of
from django_tasklock.celery.delivery.defer import defer, put_off
from django_tasklock.celery.delivery.duplicates import Earlier, discard
from django_tasklock.celery.message import Message
from django_tasklock.celery.queue import line, rows
from django_tasklock.celery.queue.ending import end_replaced
from django_tasklock.celery.queue.envelope import seal
from django_tasklock.celery.queue.promoter import promote
from django_tasklock.celery.queue.rows import DOWN, PARKED, Row
from django_tasklock.celery.rates import cancel_reservation
from django_tasklock.celery.state import Duplicate, Parked
from django_tasklock.decorators.call import Skipped
from django_tasklock.exceptions import BackendUnavailable, TaskLockAcquireError
from django_tasklock.locks import events
from django_tasklock.locks.holder import alive
from django_tasklock.names import each_of

logger = logging.getLogger("django_tasklock")


class Line:
    """The position of one message among those that wait for the same lock."""

    def __init__(
        self, message: Message, earlier: Earlier, name: str, on_conflict: str, queue_limit: int | None
    ) -> None:
        self.message = message
        self.earlier = earlier
        self.name = name
        self.on_conflict = on_conflict
        self.queue_limit = queue_limit
        self._row: Row | None = None
        self._is_alone = False
        self.has_begun = False
        """Whether the message has left the table, because its run begins."""

    @cached_property
    def number(self) -> int:
        """The sequence number of the message, drawn on arrival if its publisher drew none."""
        return line.number_of(self.message, self.name if self.on_conflict == "queue" else "")

    def check_row(self) -> None:
        """Read the row of a message that was delivered before. Raises ``Duplicate`` if another copy has it."""
        message = self.message
        self._row = row = rows.find(message.id)
        if row is None and message.sent and not (message.redelivered or message.again):
            discard(message, "its run has begun")
        if row is not None and (row.state == PARKED or row.sent != message.sent):
            discard(message, "it is parked")

    def begin(self) -> None:
        """Delete the row, and end the messages that this one replaces, as it starts now: the lock is held.

        Raises ``Duplicate`` if another copy of it has the row.
        """
        promoted = self._row is not None  # its promoter has ended those before it
        if self.message.delivered_before and not (self._row and rows.remove_unchanged(self._row)):
            self.check_row()
            if self._row is not None:
                rows.remove_unchanged(self._row)
        self.has_begun = True
        if self.on_conflict == "coalesce" and not promoted:
            self.message.carry(**self._replace_older(heir=self.message.request))

    def end_if_done(self) -> None:
        """Leave the line and raise ``Duplicate`` if another delivery has done the work."""
        try:
            self.earlier.end_if_done()
        except Duplicate:
            if self.on_conflict == "queue":  # it may have drawn a number on arrival, for which others would wait
                line.leave(self.name, self.message.id)
            raise

    def wait_turn(self) -> Skipped | None:
        """Return ``None`` if it is the message's turn; otherwise park it, or end it if a newer one has replaced it.

        Raises ``Duplicate`` if another copy of it is parked, or was promoted.
        """
        if self.message.delivered_before:
            self.check_row()
            if self.message.may_be_restarted and self._runs_elsewhere():
                return None  # the lock will be found busy, and the message is not parked or replaced beside its own run
        if self.on_conflict == "queue":
            if not self.is_first():
                self.end_if_done()
                error = TaskLockAcquireError(f"lock {self.name!r} is free, but others wait for it", name=self.name)
                events.conflict(error, "queue")
                return self.park()
        # A promoted one would have been ended by a newer one.
        elif (self._row is None and rows.has_newer(self.name, self.number)) or self._is_outdated():
            return self.end_as_replaced()
        return None

    def _runs_elsewhere(self) -> bool:
        """Return whether another delivery of the message has the lock, and is not known to be dead."""
        try:
            record = get_backend().get(each_of(self.name)[0])
        except BackendUnavailable:
            return False
        return record is not None and self.earlier.is_ours(record) and alive(record.holder) is not False

    def is_first(self) -> bool:
        """Return whether no message waits that was published earlier."""
        if self.message.sent:
            return True  # the promoter has checked, and may have passed over one that no worker takes
        if not get_backend().keeps_order:
            return not rows.has_older(self.name, self.number)
        try:  # the store's line includes parked messages
            return not get_backend().count_before(self.name, self.number)
        except BackendUnavailable:
            return True  # the lock cannot be read either, and its policy decides

    def _is_outdated(self) -> bool:
        """Return whether a message that was published later has arrived earlier, and may have run already."""
        try:
            return not get_backend().record_newest(self.name, self.number)
        except BackendUnavailable:
            return False

    def park(self) -> NoReturn:
        """Store the message in the database and raise ``Parked``.

        The message is parked first, and the lock is checked after that.
        """
        message = self.message
        cancel_reservation(message.task, message.request)
        try:
            self._write_row()
        except DOWN as error:
            line.leave(self.name, message.id)
            put_off(message, error, put_back=message.header.get("put_back"))
        try:
            self._end_replaced()
        except DOWN as error:
            # The row will be promoted. Deferred as well, the message would run twice; failed, it would run after that.
            logger.warning("lock %r: a parked message is left to the workers' next poll: %s", self.name, error)
        if not self._flag_holder():
            self.promote_next()
        raise Parked(f"parked behind lock {self.name!r}")

    def put_off(self, error: Exception) -> NoReturn:
        """Put the message off: it waits in the table, in its place, until a promoter finds that its lock can be taken.

        One whose run has begun has left its place, and waits in the broker.
        """
        put_off(self.message, error, put=None if self.has_begun else self._wait_in_table)

    def _wait_in_table(self, message: Message, why: str, seconds: float, **header: Any) -> NoReturn:
        try:
            self._write_row(**header)
        except (*DOWN, TaskLockAcquireError):  # there is no table, or no place in it
            # One that was promoted comes back as such, for as long as its row is in the table.
            defer(message, why, seconds, put_back=message.header.get("put_back"), **header)
        raise Parked(f"{why}; it is parked behind lock {self.name!r}")

    def await_turn(self, seconds: float, **header: Any) -> tuple[int, int] | None:
        """Write the row of a message that waits in the broker for its turn at a rate limit, for so long.

        So a newer message finds it and takes its place. ``header``: with the reservation. Return the ``put_back`` of
        the message that is to be sent; ``None``: there is no row, the database is down.
        """
        try:
            self._write_row(due=seconds, **header)
        except DOWN as error:
            logger.warning("lock %r: a message that waits for its turn has no row: %s", self.name, error)
            return None
        return 1, self.message.retries

    def _write_row(self, due: float | None = None, **header: Any) -> None:
        """Write the row. Raises ``TaskLockAcquireError`` if too many wait."""
        message = self.message
        signature = message.to_signature(put_back=None, number=self.number, **header)
        stored = rows.park(
            self.name,
            self.number,
            self.on_conflict,
            message.task.name,
            message.id,
            seal(self.name, signature, message.task),
            limit=self.queue_limit,
            due=due,
        )
        if not stored:
            line.leave(self.name, message.id)
            text = f"lock {self.name!r}: {self.queue_limit} messages are parked for it, its queue_limit"
            raise TaskLockAcquireError(text, name=self.name)

    def _end_replaced(self) -> None:
        """End the ``coalesce`` messages that a newer one has replaced: those before this one, or this one itself."""
        if self.on_conflict != "coalesce":
            return
        # Read after it was parked, so that of two that are parked at once the older one sees the newer.
        if rows.has_newer(self.name, self.number):
            self.end_as_replaced()
        self._replace_older()

    def _replace_older(self, heir: Any = None) -> dict[str, Any]:
        older = rows.find_older(key_of(self.name), self.number, self.message.id)
        if heir is None:  # those that wait for their turn end when this message has the lock: it takes their place then
            older = [row for row in older if not rows.is_due_later(row)]
        return end_replaced(older, self.message.task.app, heir)

    def _flag_holder(self) -> bool:
        """Flag the lock for a holder whose own task does not park. Return whether the lock has a holder."""
        try:
            return get_backend().set_flag(self.name)
        except BackendUnavailable as error:
            logger.warning("lock %r: the flag for its parked message was not set: %s", self.name, error)
            return False

    def end_as_replaced(self) -> Skipped:
        """End the message, which a newer one has replaced. Return its result. Raises ``Parked`` if it has a row."""
        self.end_if_done()
        error = TaskLockAcquireError(f"lock {self.name!r}: a newer message took this one's place", name=self.name)
        events.conflict(error, "coalesce")
        row = rows.find(self.message.id)
        if self.message.delivered_before:
            self.promote_next()  # an earlier delivery of this message may have died with the lock
        if row is not None:
            end_replaced([row], self.message.task.app)
            raise Parked(str(error))
        return {"status": "skipped", "reason": "coalesced", "name": self.name}

    def leave(self) -> None:
        """Leave the line before the lock is released, so that the next holder finds no position of this message."""
        if self.on_conflict == "queue":
            # A promoted message always promotes the next: a flush may have emptied the store's line, but not the table.
            self._is_alone = not line.leave(self.name, self.message.id) and not self.message.sent

    def promote_after_release(self) -> None:
        """Promote the next message, after the lock was released, if there may be one."""
        if not self._is_alone:
            self.promote_next()

    def promote_next(self) -> None:
        """Put the next message that waits for the lock back into the broker, if the lock is free."""
        promote(self.name, self.message.task.app)
