"""The reservation in a message's header, and its cancellation if the body is not run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any

from celery.exceptions import Reject

from django_tasklock.celery.broker import redelivery_timeout
from django_tasklock.celery.definition import bound_arguments, rate_limit_of
from django_tasklock.celery.message import HEADER, RECEIVED, header_of
from django_tasklock.celery.state import state_of
from django_tasklock.exceptions import BackendUnavailable, TaskLockError
from django_tasklock.rates.limiter import RateLimiter
from django_tasklock.types import monotonic

logger = logging.getLogger("django_tasklock")

RATE = "rate"
"""The key of the reservation in our header, a dict. ``ticket``: the reservation token; ``try``: the number of
retries it is for; ``time``: its time, by the store's clock; ``left``: seconds within which it may be exchanged for a
later one; ``missed``: how often the message was late."""


def on_body_start(task: Any, callback: Callable[[], None]) -> None:
    """Call ``callback`` now, or, if the body has a rate limit, when its turn has come."""
    if rate_limit_of(task) is None:
        callback()
    else:
        state_of(task.request).on_body_start = callback


def peek_reservation(request: Any) -> dict[str, Any] | None:
    """Return the reservation of this message; ``None`` if ``retry()`` has sent it, as it was for the former try."""
    found = header_of(request).get(RATE)
    if not isinstance(found, dict) or found.get("try") != (getattr(request, "retries", None) or 0):
        return None
    return found


def pop_reservation(request: Any) -> dict[str, Any] | None:
    """Return the reservation and remove it from the header, so that it is not sent on."""
    found = peek_reservation(request)
    for header in (getattr(request, HEADER, None), (getattr(request, "headers", None) or {}).get(HEADER)):
        if isinstance(header, dict):
            header.pop(RATE, None)
    return found


def may_have_been_used(task: Any, request: Any) -> bool:
    """Return whether another delivery of this message may have used its reservation."""
    if (getattr(request, "delivery_info", None) or {}).get("redelivered") or header_of(request).get("put_back"):
        return True
    received = getattr(request, RECEIVED, None)
    return received is not None and monotonic() - received > redelivery_timeout(task.app) / 2


def is_future(limiter: RateLimiter, reservation: dict[str, Any]) -> bool:
    """Return whether the time of a reservation is in the future, so that it cannot have been used."""
    try:
        now: datetime = limiter.usage().time
    except BackendUnavailable:
        return False
    return bool(now.timestamp() < reservation["time"])


def cancel_reservation(task: Any, request: Any, args: Any = None, kwargs: Any = None) -> None:
    """Cancel the reservation of a message that has ended or is sent another way."""
    limited, reservation = rate_limit_of(task), pop_reservation(request)
    if limited is None or reservation is None:
        return
    args = request.args if args is None else args
    kwargs = request.kwargs if kwargs is None else kwargs
    try:
        limiter = limited.limiter(bound_arguments(task, args), dict(kwargs or {}))
        if not may_have_been_used(task, request) or is_future(limiter, reservation):
            limiter.give_back(reservation["ticket"])
    except (TaskLockError, TypeError) as error:  # the limit or the arguments differ from those on publication
        logger.warning("%s[%s]: its reservation counts as used: %s", task.name, request.id, error)


def on_postrun(sender: Any = None, task_id: str = "", **details: Any) -> None:
    """Cancel the reservation of a message that ended before its turn: skipped, rejected, failed (``task_postrun``)."""
    if rate_limit_of(sender) is None:
        return
    from django_tasklock.celery.exceptions import Duplicate

    ended = details.get("retval")
    if peek_reservation(sender.request) is None or isinstance(ended, Duplicate):  # it belongs to the other delivery
        return
    if isinstance(ended, Reject) and getattr(ended, "requeue", False) and sender.acks_late:
        return  # it is redelivered with its reservation
    cancel_reservation(sender, sender.request, details.get("args"), details.get("kwargs"))
