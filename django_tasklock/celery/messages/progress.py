"""The messages for which a living worker no longer vouches: it gives them back, so that others take them.

A main process lives on while its slots hang, in a read without a time limit or stopped by a signal. Therefore a lease
also needs progress. Messages that wait for a slot are given back if no slot has begun or ended anything for
``SLOTS_TIMEOUT``, and so is a running one whose own lock has ended by its timeout, after one more lease.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from typing import Any

from celery.worker import state

from django_tasklock.backends import get_backend
from django_tasklock.celery.definition import lock_of
from django_tasklock.celery.delivery.cleanup import lock_name
from django_tasklock.celery.message import header_of
from django_tasklock.celery.messages.held import unchanged
from django_tasklock.celery.options import of_call, pop_overrides
from django_tasklock.celery.request import Request
from django_tasklock.celery.task import OnceTask
from django_tasklock.conf import DEFAULT, UNTIL_RELEASED, milliseconds, spans
from django_tasklock.db.connections import release_connections
from django_tasklock.db.forks import no_fork
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.logs import log
from django_tasklock.types import monotonic

SLOTS_TIMEOUT = 300.0
"""Seconds in which slots that do not hang begin or end something. What is given back too early only runs elsewhere."""
SHOWN = 5
"""Tasks that a warning names."""


class Progress:
    """The progress of one worker, whose messages have this lease, in seconds."""

    def __init__(self, lease: float) -> None:
        self.lease = lease
        self._progress = _progress()
        self._progressed = monotonic()
        self._stalled_at: tuple[int, int] | None = None
        self._outlived: dict[Any, float] = {}
        """The running requests whose locks have ended, and when that was seen."""
        self._looker: threading.Thread | None = None

    @property
    def stalled(self) -> bool:
        """Whether messages wait, and no slot has begun or ended anything for the timeout: nothing more is fetched."""
        return self._stalled_at is not None and self._stalled_at == _progress()

    @property
    def stuck(self) -> int:
        """The number of messages that wait for stalled slots, or run on without their lock."""
        return len(self._outlived) + (len(_waiting()) if self.stalled else 0)

    def hook_into(self, qos: Any) -> None:
        """Fetch nothing while the slots are stalled."""
        can_consume = qos.can_consume
        qos.can_consume = lambda: not self.stalled and can_consume()

    def review(self) -> list[Any]:
        """Look at the slots, once per renewal. Return the messages to be put back into their queues now."""
        given_back = self._waiting_for_nothing() + self._outliving_their_lock()
        if given_back:
            log(logging.WARNING, "messages: %d given back: %s", len(given_back), _describe(given_back))
        return [request.message for request in given_back]

    def _waiting_for_nothing(self) -> list[Request]:
        """Give back the requests that wait for a slot, if none has gone on for the timeout."""
        now, progress, waiting = monotonic(), _progress(), _waiting()
        if not waiting or progress != self._progress:
            self._progress, self._progressed, self._stalled_at = progress, now, None
            return []
        if now - self._progressed < SLOTS_TIMEOUT:
            return []
        if self._stalled_at is None:
            self._stalled_at = progress
            log(
                logging.WARNING,
                "messages: %d wait, and no slot of this worker has begun or ended anything for %.0f s. They are given"
                " back, and no more are fetched until a slot does. Running: %s",
                len(waiting),
                now - self._progressed,
                _describe(unchanged(lambda: list(state.active_requests))) or "none",
            )
        return [request for request in waiting if request.give_back()]

    def _outliving_their_lock(self) -> list[Any]:
        """Give back the running requests whose lock had ended a lease ago; start to look for others."""
        running = unchanged(lambda: list(state.active_requests))
        given_back = []
        for request, seen in list(self._outlived.items()):
            if request not in running:
                del self._outlived[request]
            elif monotonic() - seen >= self.lease and not request.acknowledged:
                request.acknowledged = True  # another worker has it: an acknowledgement would take it away
                given_back.append(request)
        suspects = [
            one
            for one in running
            if not one.acknowledged and one not in self._outlived and time.time() - one.time_start > self.lease
        ]
        if suspects and (self._looker is None or not self._looker.is_alive()):
            # The store may hang, and renewals must not.
            self._looker = threading.Thread(target=self._look, args=(suspects,), name="tasklock-outlived", daemon=True)
            self._looker.start()
        return given_back

    def _look(self, suspects: list[Any]) -> None:
        try:
            with no_fork():
                for request in suspects:
                    if _outlives_its_lock(request):
                        log(
                            logging.WARNING,
                            "messages: %s still runs and its lock has ended by its timeout: in %g s its message is"
                            " given back, and another worker starts it",
                            _describe([request]),
                            self.lease,
                        )
                        self._outlived[request] = monotonic()
        except Exception as error:  # the next renewal looks again
            level = logging.DEBUG if isinstance(error, BackendUnavailable) else logging.INFO
            log(level, "messages: the locks of running tasks could not be read: %r", error)
        finally:
            with no_fork():
                release_connections()  # Django does not close the connections of this thread


def _progress() -> tuple[int, int]:
    """Return what changes whenever a slot of this worker begins or ends something."""
    return state.all_total_count[0], len(state.active_requests)


def _waiting() -> list[Request]:
    """Return the requests that wait for a slot, given back or not. One with a countdown, or a rate limit, does not."""
    reserved = unchanged(lambda: list(state.reserved_requests))
    return [one for one in reserved if isinstance(one, Request) and one not in state.active_requests]


def _outlives_its_lock(request: Any) -> bool:
    """Return whether the request's lock has ended by its timeout. May raise any error."""
    task, header, kwargs = request.task, header_of(request._context), dict(request.kwargs)
    locked: Any = lock_of(task)
    if isinstance(task, OnceTask):
        locked = of_call(task, pop_overrides(task, kwargs, header.get("once"))).lock
    if locked is None:
        return False
    timeout_ms, _ = spans(locked.timeout, getattr(locked, "lease", DEFAULT), task.name)
    timeout = math.inf if timeout_ms == UNTIL_RELEASED else timeout_ms / 1000
    waits = 0.0
    if locked.on_conflict == "wait":
        given = locked.blocking_timeout
        waits = timeout if given is None else milliseconds(given, "blocking_timeout") / 1000
    if time.time() - request.time_start <= waits + timeout:
        return False
    name = lock_name(task, header, request.args, kwargs)
    record = None if name is None else get_backend().get(name)
    is_own = record is not None and (record.holder.task, record.holder.task_id) == (task.name, request.id)
    return name is not None and not is_own


def _describe(requests: list[Any]) -> str:
    names = ", ".join(f"{one.name}[{one.id}]" for one in requests[:SHOWN])
    return names + (f" and {len(requests) - SHOWN} more" if len(requests) > SHOWN else "")
