"""Sleeping until it is one's turn to have a lock."""

from __future__ import annotations

from django_tasklock.backends.contract.leases import LeaseStore, Waiter
from django_tasklock.context import ensure_enclosing_held
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.locks import events
from django_tasklock.types import AcquireRequest, Busy, Grant, monotonic

AGAIN = 0.25  # seconds between two tries of who was told "busy" while the store does not answer, or refuses
LOOK = 1.0  # seconds asleep at most: a lock deleted by hand, or a flush, wakes nobody
MARGIN = 0.003  # seconds to sleep past the holder's expiry, so that the look is not too early

Answered = tuple[float, Grant | Busy]
"""When the answered request was sent (monotonic), and the answer."""


def take(backend: LeaseStore, request: AcquireRequest, wait: float) -> Answered:
    """Take the lock, waiting for at most ``wait`` seconds.

    Whoever was told that it is busy asks on until ``wait`` is over, whatever happens to the store:
    ``BackendUnavailable`` has that answer in ``busy`` then.
    """
    ends = monotonic() + wait
    waiter = backend.waiter(request)
    try:
        answered = _wait(waiter, ends)
        waiter.leave()
    except BaseException:  # not `finally` nor `with`: a time limit may strike as leave() is called
        waiter.leave()
        raise
    return answered


def _wait(waiter: Waiter, ends: float) -> Answered:
    patience = Patience(waiter, ends)
    while True:
        sent = monotonic()
        if sent >= ends:
            waiter.look_last()
        try:
            answer = waiter.acquire()
        except BackendUnavailable as error:
            nap = patience.failed(error, sent)
        else:
            if isinstance(answer, Grant) or sent >= ends:
                return sent, answer
            nap = patience.answered(answer)
        ensure_enclosing_held()
        handed = waiter.wait(nap)
        if handed is not None and monotonic() < sent + handed.ttl / 2000:
            return sent, handed


async def atake(backend: LeaseStore, request: AcquireRequest, wait: float) -> Answered:
    """Do what ``take`` does, for coroutines."""
    ends = monotonic() + wait
    waiter = backend.waiter(request)
    try:
        patience = Patience(waiter, ends)
        while True:
            sent = monotonic()
            if sent >= ends:
                waiter.look_last()
            try:
                answer = await waiter.aacquire()
            except BackendUnavailable as error:
                nap = patience.failed(error, sent)
            else:
                if isinstance(answer, Grant) or sent >= ends:
                    return sent, answer
                nap = patience.answered(answer)
            ensure_enclosing_held()
            handed = await waiter.await_(nap)
            if handed is not None and monotonic() < sent + handed.ttl / 2000:
                return sent, handed
    finally:
        await waiter.aleave()


class Patience:
    """What somebody who waits was told, and for how long to sleep until the next question."""

    def __init__(self, waiter: Waiter, ends: float) -> None:
        self._waiter = waiter
        self._ends = ends
        self._busy: Busy | None = None
        self._told = False

    def answered(self, busy: Busy) -> float:
        """Return seconds to sleep when somebody else has the lock."""
        self._busy = busy
        return self._nap(LOOK if busy.remaining is None else min(LOOK, busy.remaining / 1000 + MARGIN))

    def failed(self, error: BackendUnavailable, sent: float) -> float:
        """Return seconds to sleep when there was no answer to what was sent at ``sent``.

        Raises ``error`` if that is all.
        """
        self._busy = error.busy = error.busy or self._busy
        if self._busy is None or sent >= self._ends:
            raise error
        if not self._told:
            events.unavailable(self._waiter.request.name, error, "ask again", self._waiter.backend.noun)
            self._told = True
        return self._nap(AGAIN)

    def _nap(self, seconds: float) -> float:
        return max(0.001, min(seconds, self._ends - monotonic()))
