"""A limited task waits for its turn: for a moment here, for longer in the broker, with its place in its header.

The place is booked once, on the first arrival, and taken up again on every later one. A message
aims at arriving a little before its turn, because what is later than the limiter's margin has
missed it and has to take the next one.
"""

from __future__ import annotations

import logging
from typing import Any, NoReturn

from celery._state import get_current_task, get_current_worker_task
from celery.exceptions import Retry

from django_tasklock.celery.message import KEPT, Message, visibility_timeout
from django_tasklock.celery.rates.reservations import (
    BEGINS,
    RATE,
    is_future,
    limit_of,
    may_have_been_used,
    pop_reservation,
)
from django_tasklock.decorators.rates import LimitOfCall
from django_tasklock.rates.limiter import RateLimiter
from django_tasklock.rates.reservation import Reservation
from django_tasklock.types import monotonic

logger = logging.getLogger("django_tasklock")

LONGEST_HOP = 600.0  # seconds that a message stays in the broker at once, or in the memory of a worker that has it
LEAST, MOST, EVER = 0.01, 0.5, 30.0  # seconds that a message comes early; the last for one that has missed places
TAKEN = "tasklock_turn"
"""In the request: it has had its turn."""


def take_turn(limited: LimitOfCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Wait until the body of the task that a worker runs may begin; False: this is something else.

    Raises ``Retry`` if that is later, ``RateLimitExceeded`` if it is too late.
    """
    task: Any = get_current_worker_task()
    if task is None or not task.request.id or task.request.is_eager or get_current_task() is not task:
        return False
    if limit_of(task) is not limited or task.request.__dict__.get(TAKEN):
        return False
    task.request.__dict__[TAKEN] = True
    Turn(task, limited, args, kwargs).take()
    return True


class Turn:
    """That of one message on one arrival."""

    def __init__(self, task: Any, limited: LimitOfCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.message = Message(task)
        self.request = task.request
        self.ours = pop_reservation(self.request) or {}
        self.limiter = limited.limiter(args, kwargs)
        self.cost = limited.cost(args, kwargs)
        self.timeout = self.ours.get("left", limited.timeout)
        self.missed = int(self.ours.get("missed", 0))

    def take(self) -> None:
        """Wait here, or leave."""
        began = monotonic()
        place = self._place()
        self.missed += place.missed
        patience = 2 * lead(self.limiter, self.missed)
        if place.wait <= patience:
            then = self.request.__dict__.pop(BEGINS, None)
            try:
                if then is not None:
                    then()
            except BaseException:
                place.cancel()
                raise
            if place.use_within(patience):
                return
        wait = place.wait
        self._leave(wait, {"time": place.time.timestamp(), "ticket": place.move()}, began)

    def _place(self) -> Reservation:
        """Its own if it brings one; booked otherwise."""
        ticket = self.ours.get("ticket")
        # A place of the past is somebody's call, if another delivery of the message has made one.
        if ticket and (not may_have_been_used(self.message.task, self.request) or is_future(self.limiter, self.ours)):
            return self.limiter.restore(ticket, self.timeout, spaced=True)
        return self.limiter.reserve(self.timeout, cost=self.cost, spaced=True)

    def _leave(self, wait: float, place: dict[str, Any], began: float) -> NoReturn:
        message = self.message
        seconds = countdown(message.task.app, self.limiter, wait, self.missed)
        self.request.__dict__.pop(KEPT, None)  # the lock is for others meanwhile, even if retry() would keep it
        if self.timeout is not None:
            left = max(0.0, self.timeout - (monotonic() - began) - seconds)
            place["left"] = left
        header = reservation_header(place, message.retries, self.missed)
        message.again(countdown=seconds, kept=None, put_back=None, **{RATE: header}).apply_async()
        raise Retry(f"rate limit {self.limiter.name!r}: its turn is in {wait:.1f} s", when=seconds)  # type: ignore[arg-type]


def reservation_header(place: dict[str, Any], retries: int = 0, missed: int = 0) -> dict[str, Any]:
    """A place as it travels."""
    return {**place, "try": retries, "missed": missed}


def lead(limiter: RateLimiter, missed: int = 0) -> float:
    """How many seconds before its turn a message comes: as much as is between two calls, so that about one message
    of a limiter waits in the workers at a time, whatever its rate. After a miss twice as much, and so on, or in a
    busy pool it would never be in time. Twice that is the longest that is waited in a worker: a second, usually."""
    interval = min((rate.window + rate.margin) / rate.limit for rate in limiter.terms.rates) / 1_000_000
    return float(min(max(LEAST, min(interval, MOST)) * 2.0 ** min(missed, 16), EVER))


def countdown(app: Any, limiter: RateLimiter, wait: float, missed: int = 0) -> float:
    """For how many seconds to send a message away whose turn is in ``wait``: in steps if that is long, each shorter
    than half of the broker's visibility timeout."""
    return float(min(max(0.0, wait - lead(limiter, missed)), LONGEST_HOP, visibility_timeout(app) / 2))
