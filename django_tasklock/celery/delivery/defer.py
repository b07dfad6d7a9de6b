"""Putting a message aside whose lock is busy: it is rejected, or sent again for later.

*Published* implies *ran, is parked, or is recorded as skipped, rejected or coalesced*.
"""

from __future__ import annotations

import logging
import random
from typing import Any, NoReturn

from celery import states
from celery.app.task import Task
from celery.exceptions import Retry

from django_tasklock.celery.broker import shortest_countdown, visibility_timeout
from django_tasklock.celery.exceptions import Rejected
from django_tasklock.celery.message import Message
from django_tasklock.celery.rates.reservations import cancel_reservation
from django_tasklock.celery.sending import send
from django_tasklock.exceptions import TaskLockAcquireError
from django_tasklock.locks.lock import Acquirable

logger = logging.getLogger("django_tasklock")

SHORTEST = 1.0  # seconds to the first try again
LONGEST = 60.0  # the most: how long the lock is free before somebody looks, if only this message wants it
UNSEEN = 5.0  # seconds to come back after, where the holder could not be read


def reject(error: TaskLockAcquireError, message: Message) -> NoReturn:
    """End the message unrun: its state is ``REVOKED``, and ``get()`` raises ``error``."""
    if message.wants_result:
        try:
            message.task.backend.store_result(message.id, error, states.REVOKED, request=message.request)
        except Exception as trouble:  # who waits for the result is not told; the message is over all the same
            logger.warning("%s[%s]: that it was rejected was not stored: %r", message.task.name, message.id, trouble)
    raise Rejected(str(error))


def defer(message: Message, lock: Acquirable, seconds: float | None = None, **header: Any) -> NoReturn:
    """Send the message again, for when the lock may be free or in ``seconds``. Spends no retries. Raises ``Retry``."""
    app = message.task.app
    seconds = backoff(message, lock) if seconds is None else min(seconds, visibility_timeout(app) / 2)
    seconds = max(seconds, shortest_countdown(app))
    cancel_reservation(message.task, message.request)
    header |= {"waits": message.header.get("waits", 0) + 1, "put_back": None}
    send(message.again(countdown=seconds, **header), message.task)
    raise Retry(f"{lock.noun} {lock.name!r} is busy, again in {seconds:.1f} s", when=seconds)  # type: ignore[arg-type]


def backoff(message: Message, lock: Acquirable) -> float:
    """Return the seconds until another try: few, as bodies are usually short, and twice as many each time.

    Or the task's own ``default_retry_delay``. Jittered, and at most half of the broker's visibility timeout, beyond
    which it would be delivered twice.

    What is left of the holder's lease says nothing: that is renewed while it runs, and gone when it ends.
    """
    delay = message.task.default_retry_delay
    if delay and delay != Task.default_retry_delay:
        seconds = float(delay)
    elif lock.met is None:
        seconds = UNSEEN
    else:
        seconds = min(SHORTEST * 2.0 ** min(message.header.get("waits", 0), 16), LONGEST)
    return float(min(seconds * random.uniform(1.0, 1.25), visibility_timeout(message.task.app) / 2))
