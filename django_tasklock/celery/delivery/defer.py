"""What is done with a message whose body cannot begin now: it is rejected, or sent again with a countdown.

*Published* implies *ran, is parked, or is recorded as skipped, rejected or coalesced*. A message fails for what its
body did; an error that keeps the body from beginning puts it off, until that has lasted for the task's ``patience``.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import Any, NoReturn

from celery.app.task import Task
from celery.exceptions import Retry

from django_tasklock import counts
from django_tasklock.celery.broker import shortest_countdown, visibility_timeout
from django_tasklock.celery.canvas import end_without_run
from django_tasklock.celery.definition import patience_of
from django_tasklock.celery.message import Message
from django_tasklock.celery.rates import RATE, cancel_reservation, pop_reservation
from django_tasklock.celery.sending import send
from django_tasklock.celery.state import Parked, Rejected
from django_tasklock.decorators.call import Call, Skipped
from django_tasklock.exceptions import BackendUnavailable, TaskLockAcquireError, TaskLockError
from django_tasklock.locks import events

logger = logging.getLogger("django_tasklock")

FIRST_DELAY = 1.0  # seconds until the first new attempt
LONGEST_DELAY = 60.0  # the longest: a free lock stays unused for so long if only this message waits for it
Put = Callable[..., NoReturn]
"""What puts a message where it waits, with the arguments of ``defer``."""
FIRST_PAUSE = 0.5  # seconds until the first new attempt of a message that is put off, or whose row is not there


def reject(error: TaskLockError, message: Message) -> NoReturn:
    """End the message, and the rest of its chain, without a run: ``REVOKED``, and ``get()`` raises ``error``."""
    try:
        end_without_run(message.task.backend, message.request, error, store=message.wants_result)
    except Exception as trouble:  # callers that wait for the result get none; the message has ended anyway
        logger.warning("%s[%s]: the state REVOKED was not stored: %r", message.task.name, message.id, trouble)
    raise Rejected(str(error))


def resolve(
    call: Call, message: Message, error: TaskLockAcquireError, word: str, seconds: float | None = None
) -> Skipped:
    """Do what ``word``, an ``on_conflict``, says about a busy lock: skip, raise, or put the message aside.

    ``seconds``: until a message that is sent again, by default a backoff. Raises ``Retry`` or ``Rejected`` for Celery.
    """
    if isinstance(error.__cause__, BackendUnavailable) and word not in ("raise", "wait"):
        return call.skip(error)  # as on_unavailable="skip" demands
    if word == "reject":
        if message.in_canvas:  # without this member's result the others would wait for ever
            return call.skip(error)
        events.conflict(error, "reject")
        reject(error, message)
    if word == "retry":
        events.conflict(error, "retry")
        defer(message, f"{call.lock.noun} {call.lock.name!r} is busy", seconds)
    return call.skip_or_raise(error)


def put_off(message: Message, error: Exception, *, put: Put | None = None, **header: Any) -> NoReturn:
    """Send the message again, because ``error`` is not its body's and has kept that from beginning.

    It keeps its reservation. ``put``: what is done in place of ``defer``. Raises ``Retry`` or ``Parked``; ``error``,
    which then says so, once this has lasted for the task's ``patience``.
    """
    patience = patience_of(message.task)
    header[RATE] = pop_reservation(message.request)
    try:
        defer_within(message, patience, str(error), "put_off", put, **header)
    except (Retry, Parked) as again:
        counts.count(counts.PUT_OFF, counts.clean_kind(message.task.name))
        logger.warning("%s[%s] is put off: %s", message.task.name, message.id, again)
        raise
    error.args = (f"{error}; the message was put off for {patience:g} s, its task's patience",)
    raise error


def defer_within(
    message: Message, patience: float, why: str, since: str, put: Put | None = None, **header: Any
) -> None:
    """Defer the message if its first such attempt is less than ``patience`` seconds ago.

    The pauses grow with the time since then: half a second, the same, 1, 2, 4 seconds and so on, up to a minute.
    ``since``: the field of our header with that time, and with the number of the try. ``put``: as for ``put_off``.
    """
    now = time.time()
    first, retries = message.header.get(since) or (now, message.retries)
    if retries != message.retries:
        first = now
    waited = max(0.0, now - first)
    if waited < patience:
        pause = min(max(FIRST_PAUSE, waited), LONGEST_DELAY, patience - waited)
        (put or defer)(message, why, pause, **{since: (first, message.retries)}, **header)


def defer(message: Message, why: str, seconds: float | None = None, **header: Any) -> NoReturn:
    """Send the message again, as ``send_again`` does. Uses no retry. Raises ``Retry``."""
    cancel_reservation(message.task, message.request)
    seconds = send_again(message, seconds, **{"put_back": None, **header})
    raise Retry(f"{why}, again in {seconds:.1f} s", when=seconds)  # type: ignore[arg-type]


def send_again(message: Message, seconds: float | None = None, **header: Any) -> float:
    """Send the message again, for ``seconds`` from now, by default a backoff. Return the seconds."""
    app = message.task.app
    seconds = backoff(message) if seconds is None else min(seconds, visibility_timeout(app) / 2)
    seconds = max(seconds, shortest_countdown(app))
    header["waits"] = message.header.get("waits", 0) + 1
    send(message.to_signature(countdown=seconds, **header), message.task)
    return seconds


def backoff(message: Message) -> float:
    """Return the seconds until another attempt: few, as bodies are usually short, doubled each time.

    Or the task's own ``default_retry_delay``. Jittered, and at most half of the broker's visibility timeout, beyond
    which the message would be delivered twice.

    The remaining time of the holder's lease is no estimate: the lease is renewed while the body runs, and removed at
    its end.
    """
    delay = message.task.default_retry_delay
    if not delay or delay == Task.default_retry_delay:
        delay = min(FIRST_DELAY * 2.0 ** min(message.header.get("waits", 0), 16), LONGEST_DELAY)
    return float(min(delay * random.uniform(1.0, 1.25), visibility_timeout(message.task.app) / 2))
