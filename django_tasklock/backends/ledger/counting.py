"""What is counted of a rate limiter's verbs."""

from __future__ import annotations

from django_tasklock.backends.contract.metrics import CANCELLED, GRANTED, GRANTED_LATE, PUSHBACK, REFUSED
from django_tasklock.backends.contract.rates import Booked, Penalty, Refused


def event_of(answer: object) -> tuple[str, int | None] | None:
    """Return the event of what a verb has answered, and the milliseconds of a wait. ``None``: nothing is counted.

    A booking is counted when it is made, with the wait that it was told; what becomes of it later is not, unless it is
    cancelled.
    """
    if isinstance(answer, Booked):
        wait = max(0, answer.wait) // 1000
        return (GRANTED_LATE, wait) if wait else (GRANTED, None)
    if isinstance(answer, Refused):
        return REFUSED, None
    if isinstance(answer, Penalty):
        return PUSHBACK, None
    return (CANCELLED, None) if answer is True else None
