"""The promotion of parked messages: when a lock is free, its next message is put back into the broker.

The process that releases a lock promotes its next message at once. That wake-up can be lost: the process may be killed,
Redis flushed, the broker purged. So a thread in every worker's main process checks each waiting key every few seconds;
of any number of promoters exactly one acts.
"""

from __future__ import annotations

import logging
import random
import threading
from typing import Any, NamedTuple

from django_tasklock import signals
from django_tasklock.backends import get_backend
from django_tasklock.backends.database.names import key_of
from django_tasklock.celery.message import HEADER, bind_header
from django_tasklock.celery.parking import store as parking
from django_tasklock.celery.parking.ending import DueMessage, end_replaced, mark_dead, open_row, revoke
from django_tasklock.celery.parking.envelope import UnusableMessage
from django_tasklock.celery.parking.rows import PARKED, PROMOTED, REPLACED, ParkedRow, close_idle
from django_tasklock.celery.unique import seconds_until
from django_tasklock.db.forks import no_fork
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.locks.holder import abandoned
from django_tasklock.logs import log
from django_tasklock.types import monotonic

logger = logging.getLogger("django_tasklock")

PERIOD = 5.0  # seconds between two polls of one promoter
PATIENCE = 10.0  # seconds for a message that was put back to arrive, doubled each time: it may be in a long queue
LONGEST_PATIENCE = 600.0
PREDECESSOR_PATIENCE = 10.0  # seconds to wait for a message that was published earlier and has not arrived
MOST_ATTEMPTS = 8  # with the patience above about twenty minutes, if the message reaches no worker at all
UNUSABLE_PATIENCE = 600.0  # seconds to leave unusable messages to other apps
MOST_SKIPPED = 20  # unusable messages at the head of one line that are passed over in one poll
BATCH = 200  # keys in one poll; the next one continues from there


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


def promote_next(key: str, app: Any, unusable: UnusableLog | None = None, *, free: bool = False) -> bool:
    """Promote the next message of a lock, by its key. Return whether a message was put back. Errors are raised.

    ``unusable``: records messages that this app cannot put back; without it they are only passed over. ``free``: the
    lock was just found free.
    """
    found = next_in_line(key, app, free=free)
    for _ in range(BATCH):  # further ones are left to the promoters
        if found.due is None or not _end_without_run(found.due, app):
            break
        found = next_in_line(key, app, free=free)
    for row in found.exhausted:
        mark_dead(row, f"it was put back into the broker {row.attempts} times, and no worker took it", app)
    if unusable is not None:
        unusable.record(key, found.unusable)
    due = found.due
    if due is None:
        return False
    if due.row.mode == "queue" and _awaits_another(due.row, due.name):
        return False
    if due.row.mode == "coalesce" and not found.alone:  # one that arrives now finds this newer one and ends itself
        end_replaced(parking.find_older(key, due.row.number, due.row.task_id), app)
    return _put_back(due)


class LineCheck(NamedTuple):
    """The result of one check of the messages that are kept for a lock."""

    due: DueMessage | None
    """The message to put back. ``None``: there is none, one is on its way, or the lock is held."""
    exhausted: list[ParkedRow]
    """The messages that were put back too often."""
    unusable: list[tuple[ParkedRow, str]]
    """The messages before it that this app cannot put back, and why."""
    alone: bool = False
    """Whether no other message waits for the lock."""


def next_in_line(key: str, app: Any, *, free: bool = False) -> LineCheck:
    """Find the next message for the lock with this key, without changes. ``free``: the lock is known to be free."""
    unusable: list[tuple[ParkedRow, str]] = []
    just_refused: list[ParkedRow] = []
    tasks: set[str] = set()
    while True:
        passed = [row.id for row, _ in unusable] + [row.id for row in just_refused]
        head, moving, alone = parking.read_line(key, passed, tasks)
        late = [row for row in moving if row.state == PROMOTED and is_overdue(row)]
        exhausted = [row for row in late if row.attempts >= MOST_ATTEMPTS]
        check = LineCheck(None, exhausted, unusable)
        if any(row.state == PROMOTED and row.mode != REPLACED and row not in late for row in moving):
            return check
        ready = [row for row in late if row not in exhausted]
        ready += [] if head is None else [head]
        if not ready or len(passed) >= MOST_SKIPPED:
            return check
        row = min(ready, key=lambda row: (row.number, row.id))
        if row.state == PARKED and row.attempts and not is_overdue(row):  # a worker has just refused it
            just_refused.append(row)
            continue
        try:
            due = open_row(row, app)
        except UnusableMessage as error:
            unusable.append((row, str(error)))
            if row.task not in app.tasks:
                tasks.add(row.task)
            continue
        if due is None or (not free and is_held(due.name)):
            return check
        return check._replace(due=due, alone=alone and not unusable and not just_refused)


def is_held(name: str) -> bool:
    """Return whether the lock is held. A lock of a dead process counts as free: the promoted message takes it over."""
    record = get_backend().get(name)
    return record is not None and not abandoned(record)


def is_overdue(row: ParkedRow) -> bool:
    """Return whether a message that was put back has not arrived in time: its queue may have been purged."""
    patience = min(PATIENCE * 2.0 ** max(0, row.attempts - 1), LONGEST_PATIENCE)
    return row.now - row.changed_at > patience * 1000


def _awaits_another(row: ParkedRow, name: str) -> bool:
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


def _put_back(due: DueMessage) -> bool:
    """Put one message back into the broker. Return whether it was sent.

    If this process is killed in between, the message becomes overdue, or is sent twice and runs once.
    """
    row, signature = due.row, due.signature
    attempts = row.attempts + 1
    if not parking.move_to(row, PROMOTED, sent=1, attempts=attempts):
        return False
    headers = signature.options.get("headers") or {}
    put_back = (row.sent + 1, signature.options.get("retries") or 0)
    header = bind_header({**(headers.get(HEADER) or {}), "put_back": put_back}, row.task, row.task_id)
    headers = {**headers, HEADER: header}
    try:
        # The process that releases the lock is not its parent.
        signature.clone(headers=headers).apply_async(add_to_parent=False)
    except Exception as error:
        logger.warning("lock %r: %s[%s] could not be sent: %s", due.name, row.task, row.task_id, error)
        back = parking.find(row.task_id)
        if back is not None and back.state == PROMOTED:
            parking.move_to(back, PARKED, attempts=row.attempts)
        return False
    logger.info("lock %r: %s[%s] promoted", due.name, row.task, row.task_id)
    waited = max(0, row.now - row.parked_at) / 1000
    signals.send(signals.message_promoted, due.name, task=row.task, task_id=row.task_id, waited=waited, header=header)
    return True


class UnusableLog:
    """The messages that one promoter cannot put back: another app or a newer worker may."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self._since: dict[tuple[str, str], float] = {}

    def record(self, key: str, unusable: list[tuple[ParkedRow, str]]) -> None:
        """Record the messages found now. Those whose task was unusable for this lock long enough are marked as dead."""
        now = monotonic()
        kinds = {(key, row.task): (row, reason) for row, reason in reversed(unusable)}
        for kind in [kind for kind in self._since if kind[0] == key and kind not in kinds]:
            del self._since[kind]
        for kind, (row, reason) in kinds.items():
            if now - self._since.setdefault(kind, now) >= UNUSABLE_PATIENCE:
                self._mark_dead(row, reason)

    def _mark_dead(self, row: ParkedRow, reason: str) -> None:
        """Mark that row as dead, and further unusable ones of the same task: there may be thousands."""
        for one in parking.find_alike(row, BATCH):
            try:
                if open_row(one, self.app) is not None:
                    continue
            except UnusableMessage as error:
                reason = str(error)
            mark_dead(one, reason, self.app)


class Promoter:
    """The thread of a worker's main process that promotes messages after a lost wake-up."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self._stop = threading.Event()
        self._unusable = UnusableLog(app)
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
                key = parking.next_key(self._last_key)
                self._last_key = key or ""
                if key is None:
                    break
                promoted += self._promote_key(key)
        return promoted

    def _promote_key(self, key: str) -> bool:
        try:
            return promote_next(key, self.app, self._unusable)
        except BackendUnavailable:
            raise  # the other keys would fail as well
        except Exception as error:  # one unreadable row must not block the others
            logger.warning("parked messages with key %s were not promoted: %r", key, error)
            return False
