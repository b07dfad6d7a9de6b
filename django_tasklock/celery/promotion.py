"""Putting parked messages back into the broker, one per lock, when the lock is free.

Whoever releases a lock promotes its next message at once. That wake-up can be lost: the
releaser may be killed, Redis flushed, the broker purged. So a thread in every worker's main
process looks at each waiting key every few seconds; of any number of promoters one acts.
"""

from __future__ import annotations

import logging
import random
import threading
from typing import Any

from django_tasklock import holders
from django_tasklock.backends import get_backend
from django_tasklock.backends.database.rows import key_of
from django_tasklock.backends.values import holder_of, json_object
from django_tasklock.celery import parking
from django_tasklock.celery.envelope import unseal
from django_tasklock.celery.forks import no_fork
from django_tasklock.celery.message import HEADER
from django_tasklock.celery.parking import ENDED, PARKED, PROMOTED, RUNNING, SUPERSEDED, Parked
from django_tasklock.exceptions import BackendUnavailable

__all__ = ["Promoter", "next_in_line", "promote", "promote_next", "ran_here", "runs", "supersede"]

logger = logging.getLogger("django_tasklock")

PERIOD = 5.0  # seconds between two looks of one promoter
PATIENCE = 10.0  # seconds a message that was put back may take to arrive, doubled each time: it may be in a long queue
MOST_PATIENCE = 600.0
MISSING = 10.0  # seconds the line waits for a message that was published before and has not arrived
STORING = 60.0  # seconds in which a result is stored, if nothing is known of the process that does it
AT_ONCE = 200  # keys in one look; the next one goes on from there


def promote(name: str, app: Any) -> bool:
    """Put the next message for ``name`` back into the broker if its lock is free; True if one was.

    What cannot be done now, with a store, the database or the broker down, is logged and left to the promoters.
    """
    try:
        if get_backend().get(name) is not None:
            return False  # its holder looks when it releases, which is after what we know was parked
        return promote_next(key_of(name), app)
    except Exception as error:
        logger.warning("lock %r: what is parked behind it was not promoted, a worker will: %s", name, error)
        return False


def promote_next(key: str, app: Any) -> bool:
    """``promote`` by the key of the lock, raising what stands in the way."""
    head, moving = parking.line(key)
    for row in moving:
        if row.state == SUPERSEDED and _overdue(row):
            _send(row, app, SUPERSEDED)
    found = next_in_line(head, moving)
    if found is None:
        return False
    name, row = found
    if row.mode == "queue" and _awaits_another(row, name):
        return False
    if row.mode == "coalesce":
        supersede(key, row.ticket, row.task_id, app)
    return _send(row, app, PROMOTED)


def next_in_line(head: Parked | None, moving: list[Parked]) -> tuple[str, Parked] | None:
    """The message that is to be put back, and its lock's name; ``None``: there is none, one is on its way, or the lock
    is held."""
    if any(row.state == PROMOTED and not _overdue(row) for row in moving):
        return None
    ready = [row for row in moving if row.state == PROMOTED or (row.state in (RUNNING, ENDED) and not runs(row))]
    ready += [] if head is None else [head]
    if not ready:
        return None
    row = min(ready, key=lambda row: (row.ticket, row.id))
    text = parking.message_of(row)
    if text is None:
        return None
    name = str(json_object(text).get("name"))
    return None if get_backend().get(name) is not None else (name, row)


def supersede(key: str, ticket: int, task_id: str, app: Any) -> None:
    """End the ``coalesce`` messages that are older than this one and wait for the same lock: each is sent to say so."""
    for row in parking.forward(key, ticket, task_id):
        if row.state == PROMOTED:
            parking.change(row, SUPERSEDED)  # it is on its way already
        else:
            _send(row, app, SUPERSEDED)


def _overdue(row: Parked) -> bool:
    """Whether a message that was put back has not arrived: its queue may have been purged."""
    patience = min(PATIENCE * 2.0 ** max(0, row.sent - 1), MOST_PATIENCE)
    return row.now - row.changed_at > patience * 1000


def _awaits_another(row: Parked, name: str) -> bool:
    """Whether a message that was published before is still on its way. It is not waited for for ever: it may be lost,
    or lie in the buffer of a worker that is busy with something else."""
    waited = row.now - row.parked_at > MISSING * 1000
    return get_backend().expects(name, row.ticket, forget=waited) > 0 and not waited


def runs(row: Parked) -> bool:
    """Whether the process that last ran it is known to live, or may be storing its result."""
    known = holders.alive(holder_of(json_object(row.holder)))
    storing = row.state == ENDED and row.now - row.changed_at < STORING * 1000
    return known is True or (known is None and storing)


def ran_here(row: Parked) -> bool:
    """Whether this is the process that last ran it."""
    return holder_of(json_object(row.holder)).boot == holders.BOOT


def _send(row: Parked, app: Any, state: str) -> bool:
    """Put one message back into the broker. Killed half-way, it is overdue later, or comes twice and runs once."""
    text = parking.message_of(row)
    if text is None or not parking.change(row, state, sent=1, crashes=int(row.state == RUNNING)):
        return False
    name, signature = unseal(text, app)
    headers = signature.options.get("headers") or {}
    put_back = (row.sent + 1, signature.options.get("retries") or 0)
    headers = {**headers, HEADER: {**(headers.get(HEADER) or {}), "put_back": put_back}}
    try:
        signature.clone(headers=headers).apply_async()
    except Exception as error:
        logger.warning("lock %r: %s[%s] could not be sent: %s", name, row.task, row.task_id, error)
        back = parking.find(row.task_id)
        if back is not None and back.state == state:
            parking.change(back, PARKED if state == PROMOTED else state)
        return False
    logger.info("lock %r: %s[%s] %s", name, row.task, row.task_id, state)
    return True


class Promoter:
    """The thread of a worker's main process that finds what a lost wake-up left behind."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self._stop = threading.Event()
        self._after = ""
        self._silent = False

    def start(self) -> None:
        """Begin to look."""
        threading.Thread(target=self._run, name="tasklock-promoter", daemon=True).start()

    def stop(self) -> None:
        """End before the next look."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(PERIOD * random.uniform(0.5, 1.0)):
            try:
                self.look()
                self._silent = False
            except Exception as error:  # whatever it is, the next look may find it mended
                if not self._silent:
                    logger.warning("promoter: parked messages could not be looked at, trying on: %s", error)
                self._silent = True
            finally:
                with no_fork():
                    parking.rest()

    def look(self) -> int:
        """Promote behind free locks; how many messages were."""
        promoted = 0
        for _ in range(AT_ONCE):
            with no_fork():
                key = parking.next_key(self._after)
                self._after = key or ""
                if key is None:
                    break
                promoted += self._one(key)
        return promoted

    def _one(self, key: str) -> bool:
        try:
            return promote_next(key, self.app)
        except BackendUnavailable:
            raise  # the others would fare no better
        except Exception as error:  # one that cannot be read must not keep the others
            logger.warning("what is parked under key %s was not promoted: %r", key, error)
            return False
