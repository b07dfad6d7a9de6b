"""The running tasks whose own lock has ended by its timeout: each is ended before it is started again.

The body hears at its next write that it has lost the lock, unless it hangs. So after a grace its process is killed, and
only then the message starts again, as that of any process that died. Where tasks have no processes of their own, as in
a pool of threads, the message stays with its worker.

What ended a lock is not recorded. So one has ended by its timeout if its holder was seen, and is gone after that time.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from typing import Any

from celery.worker import state

from django_tasklock.backends import get_backend
from django_tasklock.celery.definition import row_of
from django_tasklock.celery.delivery.cleanup import lock_name
from django_tasklock.celery.delivery.duplicates import Earlier
from django_tasklock.celery.message import Message, header_of
from django_tasklock.celery.messages.held import unchanged
from django_tasklock.celery.request import Request
from django_tasklock.db.connections import release_connections
from django_tasklock.db.forks import no_fork
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.logs import log
from django_tasklock.names import each_of
from django_tasklock.types import monotonic

SHORT = 1.0
"""Seconds in which most tasks end: only the locks of others are looked at. It and a renewal's period are shorter than
any sensible timeout."""


class Outlived:
    """Those of one worker. ``grace``: seconds that they have to end by themselves: the lease of the messages."""

    def __init__(self, grace: float) -> None:
        self.grace = grace
        self._until: dict[Request, float] = {}
        """When the locks that were seen end, by their timeouts: then they are looked at again."""
        self._ended: dict[Request, float] = {}
        """When the locks of tasks that run on were seen to have ended; infinite for what was dealt with."""
        self._looker: threading.Thread | None = None

    def __len__(self) -> int:
        return len(self._ended)

    def review(self) -> None:
        """Look at the locks of running tasks, in a thread: the store may hang, and renewals must not."""
        running = {one for one in unchanged(lambda: list(state.active_requests)) if isinstance(one, Request)}
        for known in (self._until, self._ended):
            for request in known.keys() - running:
                del known[request]
        due = [one for one in running if not one.acknowledged and self._is_due(one)]
        if due and (self._looker is None or not self._looker.is_alive()):
            self._looker = threading.Thread(target=self._look, args=(due,), name="tasklock-outlived", daemon=True)
            self._looker.start()

    def _is_due(self, request: Request) -> bool:
        if (ended := self._ended.get(request)) is not None:
            return monotonic() - ended >= self.grace
        if (until := self._until.get(request)) is not None:
            return monotonic() >= until
        assert request.time_start is not None  # it runs
        return time.time() - request.time_start > SHORT

    def _look(self, due: list[Request]) -> None:
        try:
            with no_fork():
                for request in due:
                    self._judge(request)
        except Exception as error:  # the next renewal looks again
            level = logging.DEBUG if isinstance(error, BackendUnavailable) else logging.INFO
            log(level, "messages: the locks of running tasks could not be read: %r", error)
        finally:
            with no_fork():
                release_connections()  # Django does not close the connections of this thread

    def _judge(self, request: Request) -> None:
        if (seconds := _seconds_left(request)) is not None:
            self._until[request] = monotonic() + seconds
            self._ended.pop(request, None)  # an outage had hidden it
        elif request not in self._until:
            return  # it waits for its lock, or runs without
        elif request not in self._ended:
            log(
                logging.WARNING,
                "messages: %s still runs and its lock has ended by its timeout: it has %g s to end by itself",
                request.humaninfo(),
                self.grace,
            )
            self._ended[request] = monotonic()
        else:
            self._end(request)
            self._ended[request] = math.inf

    def _end(self, request: Any) -> None:
        if not request.in_slot_before_start:
            log(
                logging.ERROR,
                "messages: %s still runs, %g s after its lock has ended by its timeout, and this pool cannot end it:"
                " its message stays with this worker. Restart the worker if it hangs, and if it may take so long give"
                " it timeout=None",
                request.humaninfo(),
                self.grace,
            )
            return
        row = row_of(request.task, request.args, request.kwargs)
        Earlier(Message(request.task, request._context), row, comes_again=False).count_death()
        if request.kill():
            log(
                logging.ERROR,
                "messages: %s still ran, %g s after its lock had ended by its timeout: its process %d was killed, and"
                " the message starts again as after any death. If it may take so long give it timeout=None",
                request.humaninfo(),
                self.grace,
                request.worker_pid,
            )


def _seconds_left(request: Any) -> float | None:
    """Return the seconds until the timeout of the lock that a request has; infinite if it takes none; or ``None``."""
    name = lock_name(request.task, header_of(request._context), request.args, request.kwargs)
    if name is None:
        return math.inf
    record = get_backend().get(each_of(name)[0])
    if record is None or (record.holder.task, record.holder.task_id) != (request.task.name, request.id):
        return None
    return (record.until - record.now) / 1000 if record.until > record.now else None
