"""Taking a lock now, or sleeping until it is one's turn."""

from __future__ import annotations

import math

from django_tasklock.backends.leases import Leases, Waiter
from django_tasklock.conf import Duration, milliseconds
from django_tasklock.exceptions import TaskLockError
from django_tasklock.types import Ask, Busy, Grant, monotonic

__all__ = ["atake", "patience", "take"]

LOOK = 1.0  # seconds asleep at most: a lock deleted by hand, or a flush, wakes nobody
MARGIN = 0.003  # seconds to sleep past the holder's expiry, so that the look is not too early

Taken = tuple[float, Grant | Busy]
"""When the answered request was sent (monotonic), and the answer."""


def patience(blocking: bool | None, blocking_timeout: Duration | None, name: str) -> float:
    """Seconds to wait: 0 not at all, infinite without a limit. ``TaskLockError`` for a limit that is none."""
    if blocking_timeout is None:
        return math.inf if blocking else 0.0
    if blocking is False:
        raise TaskLockError(f"blocking_timeout={blocking_timeout!r} with blocking=False means nothing", name=name)
    return milliseconds(blocking_timeout, "blocking_timeout", name=name) / 1000


def take(backend: Leases, ask: Ask, wait: float, whole: bool) -> Taken:
    """Take the lock, waiting for at most ``wait`` seconds.

    ``whole``: a lock that was handed over as a short claim is made a whole lease before
    this returns; otherwise the first renewal does that.
    """
    asked = monotonic()
    if not wait:
        return asked, backend.acquire(ask)
    ends = asked + wait
    waiter = backend.waiter(ask)
    try:
        taken = _wait(waiter, ends, whole)
        waiter.leave()
    except BaseException:  # not `finally` nor `with`: a time limit may strike as leave() is called
        waiter.leave()
        raise
    return taken


def _wait(waiter: Waiter, ends: float, whole: bool) -> Taken:
    while True:
        asked = monotonic()
        answer = waiter.acquire()
        if isinstance(answer, Grant) or asked >= ends:
            return asked, answer
        handed = waiter.wait(_nap(answer, ends))
        if handed is not None and not whole and monotonic() < asked + handed.ttl / 2000:
            return asked, handed


async def atake(backend: Leases, ask: Ask, wait: float, whole: bool) -> Taken:
    """``take`` for coroutines."""
    asked = monotonic()
    if not wait:
        return asked, await backend.aacquire(ask)
    ends = asked + wait
    waiter = backend.waiter(ask)
    try:
        while True:
            asked = monotonic()
            answer = await waiter.aacquire()
            if isinstance(answer, Grant) or asked >= ends:
                return asked, answer
            handed = await waiter.await_(_nap(answer, ends))
            if handed is not None and not whole and monotonic() < asked + handed.ttl / 2000:
                return asked, handed
    finally:
        await waiter.aleave()


def _nap(busy: Busy, ends: float) -> float:
    left = LOOK if busy.remaining is None else busy.remaining / 1000 + MARGIN
    return max(0.001, min(left, LOOK, ends - monotonic()))
