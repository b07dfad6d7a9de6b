"""``spread``: publish many calls of a limited task, each for the time that was reserved for it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from itertools import groupby
from typing import TYPE_CHECKING, Any

from django_tasklock.celery.definition import bound_arguments, rate_limit_of
from django_tasklock.celery.rates.turns import countdown, reservation_header
from django_tasklock.celery.sending import was_not_sent
from django_tasklock.exceptions import TaskLockError
from django_tasklock.rates.limiter import RateLimiter
from django_tasklock.rates.reservation import Reservation

if TYPE_CHECKING:
    from celery.result import AsyncResult

_to_publish: ContextVar[list[dict[str, Any]] | None] = ContextVar("tasklock_reservation", default=None)


def pop_published_reservation() -> dict[str, Any] | None:
    """Return the reservation of the message that ``spread`` is publishing, once."""
    waiting = _to_publish.get()
    return waiting.pop() if waiting else None


def spread(task: Any, calls: int | Iterable[Any], **sending: Any) -> list[AsyncResult[Any]]:
    """Publish several calls of a limited task, spread evenly. Return their results, in order.

    ``calls``: the number of calls without arguments, or the arguments of each: a tuple or list, a dict, or a single
    value. ``sending``: options of ``apply_async``. All are reserved before anything is published, a hundred at a time;
    if the last one would be too far ahead none is, and ``RateLimitExceeded`` is raised. If a call cannot be published,
    its reservation and all later ones are cancelled. If the connection is lost while a call is published, the broker
    may have the message, and its reservation counts as used.
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
            booked = limiter.reserve_many(len(some), limited.timeout, cost=cost)
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
    """Publish one call. Cancel its reservation if such a message is under way already (``unique``), or if this one is
    certainly not sent.
    """
    wait, time = reservation.wait, reservation.time.timestamp()
    token = reservation.move()
    header = [reservation_header({"ticket": token, "time": time})]
    before, handled = _to_publish.set(header), sys.exception()
    unused = False
    try:
        return task.apply_async(args, kwargs, **{**sending, "countdown": countdown(task.app, limiter, wait)})  # type: ignore[no-any-return]
    except Exception as error:
        unused = was_not_sent(error, handled)
        raise
    finally:
        _to_publish.reset(before)
        if header or unused:
            limiter.give_back(token)


def arguments(call: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of one call as ``apply_async`` takes them."""
    if isinstance(call, Mapping):
        return (), dict(call)
    return (tuple(call), {}) if isinstance(call, list | tuple) else ((call,), {})
