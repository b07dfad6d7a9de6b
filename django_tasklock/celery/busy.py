"""What a task does when its lock is busy, beyond skipping, raising and waiting: its message is put aside.

*Published* implies *ran, is parked, or is recorded as skipped, rejected or coalesced*.
"""

from __future__ import annotations

import logging
import random
import time
from typing import Any, NoReturn

from celery.exceptions import Ignore, Reject, Retry

from django_tasklock.backends import get_backend
from django_tasklock.celery.message import Message, visibility_timeout
from django_tasklock.celery.tickets import forgo
from django_tasklock.exceptions import BackendUnavailable, TaskLockAcquireError
from django_tasklock.locks import Acquirable

__all__ = ["Aside", "Rejected", "draw", "leave_line", "pause", "postpone", "reject", "ticket_of"]

logger = logging.getLogger("django_tasklock")

SHORTEST = 1.0  # seconds
UNSEEN = 5.0  # seconds to come back after, where the holder could not be read


class Aside(Ignore):
    """The message was parked: its state stays ``PARKED`` until it is promoted."""


class Rejected(Reject, Ignore):
    """A ``Reject`` that ``autoretry_for=(Exception,)`` does not take for a failure."""


def reject(error: TaskLockAcquireError) -> NoReturn:
    """End the message without a result, without bringing it back."""
    raise Rejected(str(error), requeue=False)


def postpone(message: Message, lock: Acquirable, seconds: float | None = None, **header: Any) -> NoReturn:
    """Send the message again, to come when the lock may be free or in ``seconds``. No retries of the task are spent."""
    seconds = pause(message, lock) if seconds is None else min(seconds, visibility_timeout(message.task.app) / 2)
    forgo(message.task, message.request)
    header |= {"waits": message.header.get("waits", 0) + 1, "put_back": None}
    message.again(countdown=seconds, **header).apply_async()
    raise Retry(f"{lock.noun} {lock.name!r} is busy, again in {seconds:.1f} s", when=seconds)  # type: ignore[arg-type]


def pause(message: Message, lock: Acquirable) -> float:
    """Seconds until another try: what is left of the holder's lease, doubled each time up to what is left of its
    timeout; jittered, and below half the broker's visibility timeout, beyond which it would be delivered twice."""
    met = lock.met
    if met is None:
        first = longest = UNSEEN
    else:
        longest = max(SHORTEST, (met.until - met.now) / 1000)
        first = min(longest, longest if met.ttl is None else max(SHORTEST, met.ttl / 1000))
    seconds = min(first * 2.0 ** min(message.header.get("waits", 0), 16), longest) * random.uniform(1.0, 1.25)
    return float(min(seconds, visibility_timeout(message.task.app) / 2))


def leave_line(name: str, task_id: str) -> bool:
    """The message is over, or goes another way: nobody waits for it any more. Whether others may be in the line."""
    try:
        return get_backend().arrived(name, task_id)
    except BackendUnavailable as error:
        logger.warning("lock %r: the line still has %s in it for a while: %s", name, task_id, error)
        return True


def ticket_of(message: Message, line: str = "") -> int:
    """Its place in the order of publication; drawn on arrival, in ``line``, where its publisher drew none."""
    ticket = message.header.get("ticket")
    return int(ticket) if ticket else draw(line, message.id if line else "")


def draw(name: str = "", task_id: str = "") -> int:
    """A ticket from the lock's store, and a place in its line. With that down, from this machine's clock."""
    try:
        return get_backend().ticket(name, task_id)
    except BackendUnavailable as error:
        logger.warning("no ticket from the store, this machine's clock must do: %s", error)
        return time.time_ns() // 1000
