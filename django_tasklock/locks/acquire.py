"""Acquiring a lock by waiting in its queue."""

from __future__ import annotations

from collections.abc import Callable

from django_tasklock.backends.contract.stores import LeaseStore, Waiter
from django_tasklock.context import ensure_enclosing_held
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.locks import events
from django_tasklock.types import AcquireRequest, Busy, Grant, monotonic

RETRY = 0.25  # seconds until a waiter asks again when the store did not answer
POLL = 1.0  # seconds between two attempts at most: a lock that was deleted by hand, or flushed, wakes no waiter
MARGIN = 0.003  # seconds to sleep past the holder's expiry, so that the next request is not too early

Answer = tuple[float, Grant | Busy, float | None]
"""When the request was sent (monotonic), the store's answer to it, and the seconds that the caller has waited;
``None``: that was the first request."""


Free = Callable[[Busy], bool]
"""Frees what a dead process has left in the way, and returns whether it did: then it is worth asking again at once."""


def acquire_within(backend: LeaseStore, request: AcquireRequest, wait: float, free: Free) -> Answer:
    """Acquire the lock, waiting for at most ``wait`` seconds.

    Once the store has said that the lock is busy, an outage does not end the wait: the waiter asks until ``wait`` is
    over. ``BackendUnavailable`` has the last busy answer in ``busy`` then.
    """
    waiter = backend.waiter(request)
    schedule = Schedule(waiter, wait)
    try:
        while True:
            sent = monotonic()
            try:
                answer = waiter.acquire()
            except BackendUnavailable as error:
                seconds = schedule.after_failure(error, sent)
            else:
                if isinstance(answer, Grant) or sent >= schedule.ends:
                    return sent, schedule.complete(answer), schedule.waited
                seconds = schedule.after_busy(answer)
                if free(answer):
                    continue
            ensure_enclosing_held()
            handed = waiter.wait(seconds)
            if handed is not None and monotonic() < sent + handed.ttl / 2000:
                return sent, schedule.complete(handed), schedule.waited
    finally:
        waiter.leave()


async def aacquire_within(backend: LeaseStore, request: AcquireRequest, wait: float, free: Free) -> Answer:
    """Do what ``acquire_within`` does, for coroutines."""
    waiter = backend.waiter(request)
    schedule = Schedule(waiter, wait)
    try:
        while True:
            sent = monotonic()
            try:
                answer = await waiter.aacquire()
            except BackendUnavailable as error:
                seconds = schedule.after_failure(error, sent)
            else:
                if isinstance(answer, Grant) or sent >= schedule.ends:
                    return sent, schedule.complete(answer), schedule.waited
                seconds = schedule.after_busy(answer)
                if await backend.in_thread(free, answer):
                    continue
            ensure_enclosing_held()
            handed = await waiter.await_(seconds)
            if handed is not None and monotonic() < sent + handed.ttl / 2000:
                return sent, schedule.complete(handed), schedule.waited
    finally:
        await waiter.aleave()


class Schedule:
    """When a waiter asks the store next."""

    def __init__(self, waiter: Waiter, wait: float) -> None:
        self._waiter = waiter
        self._began = monotonic()
        self._has_slept = False
        self.ends = self._began + wait
        self._busy: Busy | None = None
        self._is_reported = False
        self._expired = 0

    def after_busy(self, busy: Busy) -> float:
        """Return the seconds to sleep while another holder has the lock."""
        self._busy = busy
        self._expired += busy.expired
        return self._limit(POLL if busy.remaining is None else min(POLL, busy.remaining / 1000 + MARGIN))

    def after_failure(self, error: BackendUnavailable, sent: float) -> float:
        """Return the seconds to sleep when the request that was sent at ``sent`` failed.

        Raises ``error`` if the waiter is not to ask again.
        """
        self._busy = error.busy = error.busy or self._busy
        if self._busy is None or sent >= self.ends:
            raise error
        if not self._is_reported:
            events.unavailable(self._waiter.request.name, error, "ask again", self._waiter.backend.noun)
            self._is_reported = True
        return self._limit(RETRY)

    def complete(self, answer: Grant | Busy) -> Grant | Busy:
        """Return the last answer, with all expired leases that the store has found meanwhile."""
        return answer._replace(expired=answer.expired + self._expired)

    @property
    def waited(self) -> float | None:
        """The seconds since the first request; ``None``: no other one has followed."""
        return monotonic() - self._began if self._has_slept else None

    def _limit(self, seconds: float) -> float:
        self._has_slept = True
        return max(0.001, min(seconds, self.ends - monotonic()))
