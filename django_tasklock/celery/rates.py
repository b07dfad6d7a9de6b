"""Limited tasks: a message carries its reservation, waits for its turn, or is published for its time by ``spread``.

The reservation is made once, on the first arrival, and restored on each later one. A message waits briefly in the
worker and longer in the broker. It is timed to arrive a little before its turn, because one that is later than the
limiter's margin has missed it and has to reserve again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any, NoReturn

from celery._state import get_current_task, get_current_worker_task
from celery.exceptions import Reject, Retry

from django_tasklock.celery.broker import redelivery_timeout, shortest_countdown, visibility_timeout
from django_tasklock.celery.definition import bound_arguments, rate_limit_of
from django_tasklock.celery.message import HEADER, RECEIVED, Message, header_of
from django_tasklock.celery.sending import send
from django_tasklock.celery.state import Duplicate, state_of
from django_tasklock.decorators.rates import LimitOfCall
from django_tasklock.exceptions import BackendUnavailable, TaskLockError
from django_tasklock.rates.limiter import RateLimiter
from django_tasklock.rates.reservation import Cost, Reservation
from django_tasklock.types import monotonic

if TYPE_CHECKING:
    from celery.result import AsyncResult

logger = logging.getLogger("django_tasklock")

RATE = "rate"
"""The key of the reservation in our header, a dict. ``token``: the reservation token; ``try``: the number of
retries it is for; ``time``: its time, by the store's clock; ``left``: seconds within which it may be exchanged for a
later one; ``missed``: how often the message was late."""
LONGEST_COUNTDOWN = 600.0  # the most seconds of one countdown in the broker, or in the memory of a worker
# Seconds by which a message arrives before its turn.
MIN_LEAD, MAX_LEAD, MAX_LEAD_AFTER_MISSES = 0.01, 0.5, 30.0

_to_publish: ContextVar[list[dict[str, Any]] | None] = ContextVar("tasklock_reservation", default=None)


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
    again = header_of(request).keys() & {"put_back", "again"}
    if again or (getattr(request, "delivery_info", None) or {}).get("redelivered"):
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
            limiter.give_back(reservation["token"])
    except (TaskLockError, TypeError) as error:  # the limit or the arguments differ from those on publication
        logger.warning("%s[%s]: its reservation counts as used: %s", task.name, request.id, error)


def pass_on(app: Any, ended: Iterable[Any], heir: Any = None) -> dict[str, Any]:
    """Pass the reservations of messages that certainly have not used them, and never will, on to another message.

    ``ended``, ``heir``: their requests. The heir gets the earliest one that is of its limit and cost: return the part
    of our header with it, empty if there is none. All others are cancelled.
    """
    wanted = None if heir is None else _limit_of(app, heir)
    taken: dict[str, Any] = {}
    known = ((peek_reservation(each) or {}, each) for each in ended)
    carried = [(found["time"], found["token"], each) for found, each in known if found.get("token")]
    for moment, token, each in sorted(carried, key=lambda one: one[0]):
        limit = _limit_of(app, each)
        if limit is None:
            continue
        if wanted is not None and not taken and (limit[0].name, limit[1]) == (wanted[0].name, wanted[1]):
            taken = {RATE: reservation_header({"time": moment, "token": token}, heir.retries or 0)}
        else:
            limit[0].give_back(token)
    return taken


def _limit_of(app: Any, request: Any) -> tuple[RateLimiter, Cost] | None:
    """Return the limiter and the cost of a message; ``None``: it has no rate limit that can be told."""
    task = app.tasks.get(request.task)
    limited = rate_limit_of(task)
    if limited is None:
        return None
    try:
        args, kwargs = bound_arguments(task, request.args), dict(request.kwargs or {})
        return limited.limiter(args, kwargs), limited.cost(args, kwargs)
    except (TaskLockError, TypeError) as error:
        logger.warning("%s[%s]: its reservation counts as used: %s", request.task, request.id, error)
        return None


def on_postrun(sender: Any = None, task_id: str = "", **details: Any) -> None:
    """Cancel the reservation of a message that ended before its turn: skipped, rejected, failed (``task_postrun``)."""
    if rate_limit_of(sender) is None:
        return
    ended = details.get("retval")
    if peek_reservation(sender.request) is None or isinstance(ended, Duplicate):  # it belongs to the other delivery
        return
    if isinstance(ended, Reject) and getattr(ended, "requeue", False) and sender.acks_late:
        return  # it is redelivered with its reservation
    cancel_reservation(sender, sender.request, details.get("args"), details.get("kwargs"))


def next_turn(limited: LimitOfCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Turn | None:
    """Return the turn of the body of the worker's current task, once; ``None`` for any other call."""
    task: Any = get_current_worker_task()
    if task is None or not task.request.id or task.request.is_eager or get_current_task() is not task:
        return None
    state = state_of(task.request)
    if rate_limit_of(task) is not limited or state.had_turn:
        return None
    state.had_turn = True
    return Turn(task, limited, args, kwargs)


class Turn:
    """The turn of one message on one arrival."""

    def __init__(self, task: Any, limited: LimitOfCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.message = Message(task)
        self.request = task.request
        self.state = state_of(self.request)
        self.carried = pop_reservation(self.request) or {}
        self.limiter = limited.limiter(args, kwargs)
        self.cost = limited.cost(args, kwargs)
        self.blocking_timeout = self.carried.get("left", limited.blocking_timeout)
        self.missed = int(self.carried.get("missed", 0))

    def take(self) -> Reservation:
        """Wait in the worker, or send the message again for its turn. Raises ``Retry``, ``RateLimitExceeded``."""
        began = monotonic()
        reservation = self._reserve()
        self.missed += reservation.missed
        lead_time = lead_time_of(self.limiter, self.missed)
        max_wait = lead_time + max(lead_time, shortest_countdown(self.message.task.app))
        if reservation.wait > max_wait or not reservation.use_within(max_wait):
            wait = reservation.wait
            self._send_again(wait, {"time": reservation.time.timestamp(), "token": reservation.move()}, began)
        # Not before: the limit may be paused meanwhile, and then the body does not start.
        callback, self.state.on_body_start = self.state.on_body_start, None
        try:
            if callback is not None:
                callback()
        except BaseException:
            reservation.cancel()
            raise
        return reservation

    def unbooked(self) -> dict[str, Any]:
        """Return what our header carries of a turn that could not be booked. That time does not count as a wait."""
        left = {} if self.blocking_timeout is None else {"left": self.blocking_timeout}
        return reservation_header({"token": "", "time": 0.0, **left}, self.message.retries, self.missed)

    def _reserve(self) -> Reservation:
        """Restore the message's reservation, or make one."""
        token = self.carried.get("token")
        # A past reservation may have been used for a call by another delivery of the message.
        if token and (not may_have_been_used(self.message.task, self.request) or is_future(self.limiter, self.carried)):
            return self.limiter.restore(token, self.blocking_timeout, spaced=True)
        return self.limiter.reserve(self.blocking_timeout, cost=self.cost, spaced=True)

    def _send_again(self, wait: float, fields: dict[str, Any], began: float) -> NoReturn:
        message = self.message
        seconds = countdown(message.task.app, self.limiter, wait, self.missed)
        if self.blocking_timeout is not None:
            remaining = max(0.0, self.blocking_timeout - (monotonic() - began) - seconds)
            fields["left"] = remaining
        header = {RATE: reservation_header(fields, message.retries, self.missed)}
        put_back = None if self.state.await_turn is None else self.state.await_turn(wait, **header)
        try:
            send(message.to_signature(countdown=seconds, put_back=put_back, **header), message.task)
        except Exception as error:
            if put_back is None:
                raise
            logger.warning("%s[%s] could not be sent, a worker will: %r", message.task.name, message.id, error)
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


def pop_published_reservation() -> dict[str, Any] | None:
    """Return the reservation of the message that ``spread`` is publishing, once."""
    waiting = _to_publish.get()
    return waiting.pop() if waiting else None


def spread(task: Any, calls: int | Iterable[Any], **sending: Any) -> list[AsyncResult[Any]]:
    """Publish several calls of a limited task, spread evenly. Return their results, in order.

    ``calls``: the number of calls without arguments, or the arguments of each: a tuple or list, a dict, or a single
    value. ``sending``: options of ``apply_async``. All are reserved before anything is published, a hundred at a time;
    if the last one would be too far ahead none is, and ``RateLimitExceeded`` is raised. If a call cannot be published,
    all later reservations are cancelled; its own counts as used, because the broker may have the message.
    """
    limited = rate_limit_of(task)
    if limited is None:
        raise TaskLockError(f"task {task.name} has no rate limit: decorate its function with rate_limited")
    if {"countdown", "eta"} & set(sending):
        raise TaskLockError("spread() decides when: it takes neither countdown nor eta")
    if isinstance(calls, int) and calls < 0:
        raise TaskLockError(f"spread() publishes 0 calls or more, not {calls}")
    wanted: list[tuple[tuple[Any, ...], dict[str, Any]]] = (
        [((), {})] * calls if isinstance(calls, int) else [arguments(call) for call in calls]
    )
    if task.app.conf.task_always_eager:
        return [task.apply_async(args, kwargs, **sending) for args, kwargs in wanted]
    priced = []
    for args, kwargs in wanted:
        given = bound_arguments(task, args)
        priced.append((limited.limiter(given, kwargs), limited.cost(given, kwargs)))
    reserved: list[tuple[RateLimiter, Reservation]] = []
    sent: list[AsyncResult[Any]] = []
    try:
        for _, group in groupby(priced, key=lambda one: (one[0].name, one[1])):
            some = list(group)
            limiter, cost = some[0]
            booked = limiter.reserve_many(len(some), limited.blocking_timeout, cost=cost)
            reserved += [(limiter, reservation) for reservation in booked]
        for (args, kwargs), (limiter, reservation) in zip(wanted, reserved, strict=True):
            sent.append(publish(task, args, kwargs, limiter, reservation, sending))
    except BaseException:
        for _, reservation in reversed(reserved[len(sent) :]):
            reservation.cancel()
        raise
    return sent


def publish(
    task: Any, args: Any, kwargs: Any, limiter: RateLimiter, reservation: Reservation, sending: Mapping[str, Any]
) -> AsyncResult[Any]:
    """Publish one call. Cancel its reservation if it was not used: such a message is under way already (``unique``)."""
    wait, time = reservation.wait, reservation.time.timestamp()
    token = reservation.move()
    header = [reservation_header({"token": token, "time": time})]
    before = _to_publish.set(header)
    try:
        return task.apply_async(args, kwargs, **{**sending, "countdown": countdown(task.app, limiter, wait)})  # type: ignore[no-any-return]
    finally:
        _to_publish.reset(before)
        if header:
            limiter.give_back(token)


def arguments(call: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of one call as ``apply_async`` takes them."""
    if isinstance(call, Mapping):
        return (), dict(call)
    return (tuple(call), {}) if isinstance(call, list | tuple) else ((call,), {})
