"""Waiting of a limited task for its turn: briefly in the worker, longer in the broker, with its reservation.

The reservation is made once, on the first arrival, and restored on each later one. A message is timed to arrive a
little before its turn, because one that is later than the limiter's margin has missed it and has to reserve again.
"""

from __future__ import annotations

import sys
from typing import Any, NoReturn

from celery._state import get_current_task, get_current_worker_task
from celery.exceptions import Retry

from django_tasklock.celery.broker import shortest_countdown, visibility_timeout
from django_tasklock.celery.definition import rate_limit_of
from django_tasklock.celery.message import Message
from django_tasklock.celery.rates.reservations import (
    RATE,
    is_future,
    may_have_been_used,
    pop_reservation,
)
from django_tasklock.celery.sending import send, was_not_sent
from django_tasklock.celery.state import state_of
from django_tasklock.decorators.rates import LimitOfCall
from django_tasklock.rates.limiter import RateLimiter
from django_tasklock.rates.reservation import Reservation
from django_tasklock.types import monotonic

LONGEST_COUNTDOWN = 600.0  # the most seconds of one countdown in the broker, or in the memory of a worker
# Seconds by which a message arrives before its turn.
MIN_LEAD, MAX_LEAD, MAX_LEAD_AFTER_MISSES = 0.01, 0.5, 30.0


def take_turn(limited: LimitOfCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Wait until the body of the worker's current task may start. Return False for any other call.

    Raises ``Retry`` if that is later, ``RateLimitExceeded`` if it is too late.
    """
    task: Any = get_current_worker_task()
    if task is None or not task.request.id or task.request.is_eager or get_current_task() is not task:
        return False
    state = state_of(task.request)
    if rate_limit_of(task) is not limited or state.had_turn:
        return False
    state.had_turn = True
    Turn(task, limited, args, kwargs).take()
    return True


class Turn:
    """The turn of one message on one arrival."""

    def __init__(self, task: Any, limited: LimitOfCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.message = Message(task)
        self.request = task.request
        self.state = state_of(self.request)
        self.carried = pop_reservation(self.request) or {}
        self.limiter = limited.limiter(args, kwargs)
        self.cost = limited.cost(args, kwargs)
        self.timeout = self.carried.get("left", limited.timeout)
        self.missed = int(self.carried.get("missed", 0))

    def take(self) -> None:
        """Wait in the worker, or send the message again for its turn. Raises ``Retry``, ``RateLimitExceeded``."""
        began = monotonic()
        reservation = self._reserve()
        self.missed += reservation.missed
        lead_time = lead_time_of(self.limiter, self.missed)
        max_wait = lead_time + max(lead_time, shortest_countdown(self.message.task.app))
        if reservation.wait <= max_wait and reservation.use_within(max_wait):
            # Not before: the limit may be paused meanwhile, and then the body does not start.
            callback, self.state.on_body_start = self.state.on_body_start, None
            try:
                if callback is not None:
                    callback()
            except BaseException:
                reservation.cancel()
                raise
            return
        wait = reservation.wait
        self._send_again(wait, {"time": reservation.time.timestamp(), "ticket": reservation.move()}, began)

    def _reserve(self) -> Reservation:
        """Restore the message's reservation, or make one."""
        token = self.carried.get("ticket")
        # A past reservation may have been used for a call by another delivery of the message.
        if token and (not may_have_been_used(self.message.task, self.request) or is_future(self.limiter, self.carried)):
            return self.limiter.restore(token, self.timeout, spaced=True)
        return self.limiter.reserve(self.timeout, cost=self.cost, spaced=True)

    def _send_again(self, wait: float, fields: dict[str, Any], began: float) -> NoReturn:
        message = self.message
        seconds = countdown(message.task.app, self.limiter, wait, self.missed)
        self.state.kept_lock = None  # others may have the lock meanwhile, even if retry() would keep it
        if self.timeout is not None:
            remaining = max(0.0, self.timeout - (monotonic() - began) - seconds)
            fields["left"] = remaining
        header = reservation_header(fields, message.retries, self.missed)
        handled = sys.exception()
        try:
            send(message.to_signature(countdown=seconds, kept=None, put_back=None, **{RATE: header}), message.task)
        except Exception as error:
            if was_not_sent(error, handled):
                self.limiter.give_back(fields["ticket"])
            raise
        raise Retry(f"rate limit {self.limiter.name!r}: its turn is in {wait:.1f} s", when=seconds)  # type: ignore[arg-type]


def reservation_header(reserved: dict[str, Any], retries: int = 0, missed: int = 0) -> dict[str, Any]:
    """Return a reservation in the form in which our header carries it."""
    return {**reserved, "try": retries, "missed": missed}


def lead_time_of(limiter: RateLimiter, missed: int = 0) -> float:
    """Return how many seconds before its turn a message should arrive.

    That is the interval between two calls, so that about one message of a limiter waits in the workers at a time,
    whatever its rate. It doubles with each missed turn, as otherwise a message could be late for ever in a busy pool. A
    worker waits at most twice as long: usually a second.
    """
    interval = min((rate.window + rate.margin) / rate.limit for rate in limiter.terms.rates) / 1_000_000
    return float(min(max(MIN_LEAD, min(interval, MAX_LEAD)) * 2.0 ** min(missed, 16), MAX_LEAD_AFTER_MISSES))


def countdown(app: Any, limiter: RateLimiter, wait: float, missed: int = 0) -> float:
    """Return the countdown in seconds for a message whose turn is in ``wait`` seconds.

    A long wait is split into steps that are shorter than half of the broker's visibility timeout. For a wait that is
    too short to be sent it is 0: the message waits in the worker.
    """
    seconds = float(min(max(0.0, wait - lead_time_of(limiter, missed)), LONGEST_COUNTDOWN, visibility_timeout(app) / 2))
    return seconds if seconds >= shortest_countdown(app) else 0.0
