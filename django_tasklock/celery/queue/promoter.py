"""The promotion of parked messages: when a lock is free, its next message is put back into the broker.

The process that releases a lock promotes its next message at once. That wake-up can be lost: the process may be killed,
Redis flushed, the broker purged. So a thread in every worker's main process checks each waiting key every few seconds;
of any number of promoters exactly one acts.
"""

from __future__ import annotations

import logging
import random
import threading
from typing import Any

from django_tasklock import signals
from django_tasklock.backends import get_backend
from django_tasklock.backends.database.names import key_of
from django_tasklock.celery.message import HEADER, bind_header, is_header_for
from django_tasklock.celery.queue import line, rows
from django_tasklock.celery.queue.ending import (
    DueMessage,
    end_replaced,
    is_revoked,
    mark_dead,
    open_row,
    request_of,
    revoke,
)
from django_tasklock.celery.queue.envelope import UnusableMessage, full_name
from django_tasklock.celery.queue.rows import DOWN, PARKED, PROMOTED, REPLACED, Row, close_idle, is_due_later
from django_tasklock.celery.unique import release_unique, seconds_until
from django_tasklock.db.forks import no_fork
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.locks.dead import is_freeable
from django_tasklock.logs import log

logger = logging.getLogger("django_tasklock")

PERIOD = 5.0  # seconds between two polls of one promoter
PATIENCE = 10.0  # seconds for a message that was put back to arrive, doubled each time: it may be in a long queue
LONGEST_PATIENCE = 600.0
PREDECESSOR_PATIENCE = 10.0  # seconds to wait for a message that was published earlier and has not arrived
MOST_ATTEMPTS = 8  # to read a message, or to bring it to a worker: with the patience above about half an hour
BATCH = 200  # keys in one poll, and messages of one key; the next poll continues from there


def promote(name: str, app: Any) -> bool:
    """Put the next message for ``name`` back into the broker if its lock is free. Return whether one was.

    If a store, the database or the broker is down, that is logged, and the promoters retry.
    """
    try:
        if is_held(name):
            return False  # its holder promotes on release, which comes after the message was parked
        return promote_next(key_of(name), app, free=True)
    except Exception as error:
        logger.warning("lock %r: its next parked message was not promoted, a worker will retry: %s", name, error)
        return False


def promote_next(key: str, app: Any, *, free: bool = False, judge: bool = False) -> bool:
    """Promote the next message of a lock, by its key. Return whether a message was put back. Errors are raised.

    ``free``: the lock was just found free. ``judge``: count an attempt for messages that this app cannot read.
    """
    passed: list[int] = []  # rows that are not put back now, and do not hold up those behind them
    unknown: set[str] = set()  # tasks that this app does not know: there may be thousands of messages
    for _ in range(BATCH):
        row = _next_row(key, passed, unknown)
        if row is None:
            return False
        name = full_name(row)
        if not free and key_of(name) == row.key and is_held(name):  # a forged row may name any lock
            return False
        free = True
        overdue, last = is_overdue(row), row.attempts >= MOST_ATTEMPTS
        try:
            due = open_row(row, app)
        except UnusableMessage as error:
            if judge and overdue and last:
                mark_dead(row, str(error), app)
                continue
            known = row.task in app.tasks
            if judge and overdue:
                rows.count_attempt(row, str(error), alike=not known)
            passed.append(row.id)
            unknown |= set() if known else {row.task}
            continue
        if row.state == PARKED and row.attempts and not row.problem and not overdue:
            passed.append(row.id)  # a worker has just refused it
        elif row.attempts and not row.problem and last:
            mark_dead(row, f"it was put back into the broker {row.attempts} times, and no worker took it", app)
        elif not _end_without_run(due, app):
            return _promote(due, app)
    return False  # further ones are left to the promoters


def _next_row(key: str, passed: list[int], unknown: set[str]) -> Row | None:
    """Return the first message of a lock that may be put back. ``None``: there is none, or one is on its way.

    One that waits for its turn at a rate limit holds up nobody.
    """
    head, moving = rows.read_next(key, passed, unknown)
    late = [row for row in moving if is_overdue(row)]
    if any(row.mode != REPLACED and row not in late and not is_due_later(row) for row in moving):
        return None
    ready = late if head is None else [*late, head]
    return min(ready, key=lambda row: (row.number, row.id), default=None)


def _promote(due: DueMessage, app: Any) -> bool:
    row = due.row
    if row.mode == "queue" and _awaits_another(row, due.name):
        return False
    header: dict[str, Any] = {}
    if row.mode == "coalesce":  # one that arrives now finds this newer one and ends itself
        older = rows.find_older(row.key, row.number, row.task_id)
        header = end_replaced(older, app, request_of(row, due.signature))
    return _put_back(due, header)


def is_held(name: str) -> bool:
    """Return whether the lock is held. A lock of a dead process counts as free: the promoted message takes it over."""
    record = get_backend().get(name)
    return record is not None and not is_freeable(record)


def is_overdue(row: Row) -> bool:
    """Return whether a message that was put back has not arrived in time: its queue may have been purged."""
    patience = min(PATIENCE * 2.0 ** max(0, row.attempts - 1), LONGEST_PATIENCE)
    return row.now - row.changed_at > patience * 1000


def _awaits_another(row: Row, name: str) -> bool:
    """Return whether a message that was published earlier is still on its way.

    The wait is limited: it may be lost, or in the buffer of a worker that is busy with another task.
    """
    is_over = row.now - row.parked_at > PREDECESSOR_PATIENCE * 1000
    return get_backend().count_before(name, row.number, forget=is_over) > 0 and not is_over


def _end_without_run(due: DueMessage, app: Any) -> bool:
    """End a message that has expired, since RabbitMQ drops it silently, or was replaced. Return whether it is such."""
    if due.row.mode == REPLACED:
        end_replaced([due.row], app)
        return True
    remaining = seconds_until(due.signature.options.get("expires"))
    if remaining is None or remaining > 0:
        return False
    revoke(due.row, app, "it has expired")
    return True


def _put_back(due: DueMessage, more: dict[str, Any]) -> bool:
    """Put one message back into the broker. Return whether it was sent. ``more``: fields of our header.

    If this process is killed in between, the message becomes overdue, or is sent twice and runs once.
    """
    row, signature = due.row, due.signature
    if not rows.move(row, PROMOTED, sent=row.sent + 1, attempts=row.attempts + 1, problem=""):
        return False
    headers = signature.options.get("headers") or {}
    put_back = (row.sent + 1, signature.options.get("retries") or 0)
    header = bind_header({**(headers.get(HEADER) or {}), **more, "put_back": put_back}, row.task, row.task_id)
    headers = {**headers, HEADER: header}
    try:
        # The process that releases the lock is not its parent.
        signature.clone(headers=headers).apply_async(add_to_parent=False)
    except Exception as error:
        logger.warning("lock %r: %s[%s] could not be sent: %s", due.name, row.task, row.task_id, error)
        back = rows.find(row.task_id)
        if back is not None and back.state == PROMOTED:
            rows.move(back, PARKED, attempts=row.attempts)
        return False
    logger.info("lock %r: %s[%s] promoted", due.name, row.task, row.task_id)
    waited = max(0, row.now - row.parked_at) / 1000
    signals.send(signals.message_promoted, due.name, task=row.task, task_id=row.task_id, waited=waited, header=header)
    return True


def on_refused(sender: Any = None, message: Any = None, exc: Any = None, **details: Any) -> None:
    """Let a promoted message wait for another worker than this one; any other one has ended.

    For ``task_unknown`` and ``task_rejected``.
    """
    headers = getattr(message, "headers", None) or {}
    header, task_id = headers.get(HEADER), headers.get("id")
    if not isinstance(header, dict) or not header.keys() & {"put_back", "unique", "number"}:
        return
    if task_id and is_header_for(header, headers.get("task"), task_id):
        args = (str(task_id), header, sender.app, exc)
        threading.Thread(target=_refused, args=args, name="tasklock-refused", daemon=True).start()


def _refused(task_id: str, header: dict[str, Any], app: Any, error: Any) -> None:
    sent = (header.get("put_back") or (0, 0))[0]
    try:
        with no_fork():
            row = rows.find(task_id) if "number" in header else None
            if row is None and not sent:
                _end_refused(task_id, header, app)
            elif row is None or row.state != PROMOTED or row.sent != sent:
                return
            elif is_revoked(task_id):
                revoke(row, app, "it was revoked")
            elif rows.move(row, PARKED):
                logger.warning("parked message %s[%s]: this worker cannot take it: %r", row.task, task_id, error)
    except DOWN as trouble:
        logger.warning("message [%s], which this worker cannot take, is left to time out: %s", task_id, trouble)
    finally:
        with no_fork():
            close_idle()


def _end_refused(task_id: str, header: dict[str, Any], app: Any) -> None:
    """Free what a message has that was dropped: its ``unique`` lock, and its place in the line."""
    release_unique(header, task_id, on_its_way=True)
    if "number" in header and "key" in header:
        line.leave(header["key"], task_id)
        promote(header["key"], app)


class Promoter:
    """The thread of a worker's main process that promotes messages after a lost wake-up."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self._stop = threading.Event()
        self._last_key = ""
        self._failing = False

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="tasklock-promoter", daemon=True).start()

    def stop(self) -> None:
        """Stop before the next poll."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(PERIOD * random.uniform(0.5, 1.0)):
            try:
                self.poll()
                self._failing = False
            except BaseException as error:  # any error may be temporary
                if not self._failing:
                    log(logging.WARNING, "promoter: parked messages could not be read, retrying: %r", error)
                self._failing = True
            finally:
                with no_fork():
                    close_idle()

    def poll(self) -> int:
        """Promote messages behind free locks. Return how many were promoted."""
        promoted = 0
        for _ in range(BATCH):
            with no_fork():
                key = rows.next_key(self._last_key)
                self._last_key = key or ""
                if key is None:
                    break
                promoted += self._promote_key(key)
        return promoted

    def _promote_key(self, key: str) -> bool:
        try:
            return promote_next(key, self.app, judge=True)
        except BackendUnavailable:
            raise  # the other keys would fail as well
        except Exception as error:  # one unreadable row must not block the others
            logger.warning("parked messages with key %s were not promoted: %r", key, error)
            return False
