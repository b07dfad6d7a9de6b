"""``RateLimiter``: one limit for all threads, processes and machines."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from django_tasklock.backends.contract.rates import Algorithm
from django_tasklock.conf import Duration
from django_tasklock.exceptions import BackendUnavailable, RateLimitExceeded, TaskLockError
from django_tasklock.rates import events
from django_tasklock.rates.events import changed, watch_of
from django_tasklock.rates.notation import pushback
from django_tasklock.rates.options import OnOutage
from django_tasklock.rates.reservation import Reservation, kept
from django_tasklock.rates.tickets import LimitTickets
from django_tasklock.rates.usage import RateUsage, usage_of
from django_tasklock.types import monotonic


class RateLimiter(LimitTickets):
    """At most so many calls in any window, counted where they are made. See docs/limits.md.

    ``rates``: ``"100/m"``, ``"10/s", "5000/d"``, ``(100, 60)``; without any, what
    ``TASKLOCK["RATE_LIMITS"]`` has under ``name``. All rates hold at once, or the call waits.

    ``algorithm``, with the most units it lets through in any window of length W, at a limit of L:

    * ``"window"``: L. The default; exact.
    * ``"paced"``: L, evenly spread: one every W/L. For APIs that dislike bursts, and for very large limits.
    * ``"bucket"``: L + ``burst`` (by default a tenth of L). For APIs that document a token bucket.

    A caller books a place, sleeps once, goes: in order of arrival, up to ``margin`` (50 ms or 0.2 % of
    the window) late. ``max_wait``: seconds, how far ahead places may be booked. ``cold_start="wait"``: if
    the store knows nothing of the limiter, let one window pass. ``adaptive``: lower the limit on pushback,
    raise it again while it is used; a float is the least share of it. ``tenants``: the quota of each tenant.

    The store being down: ``on_unavailable="closed"`` raises ``BackendUnavailable``, ``"open"`` lets calls
    pass, ``"local"`` keeps to this process's share of the limit (``workers=``: how many processes there
    are), both for ``grace`` seconds after the first failure.

    Raises ``TaskLockError`` for what cannot work, before anything is stored.
    """

    def __init__(
        self,
        name: str,
        *rates: Any,
        tenants: Any = None,
        algorithm: Algorithm | None = None,
        burst: int | None = None,
        margin: Duration | None = None,
        max_wait: Duration | None = None,
        on_unavailable: OnOutage | None = None,
        grace: Duration | None = None,
        workers: int | None = None,
        cold_start: str | None = None,
        adaptive: bool | float | None = None,
    ) -> None:
        options = dict(
            tenants=tenants,
            algorithm=algorithm,
            burst=burst,
            margin=margin,
            max_wait=max_wait,
            on_unavailable=on_unavailable,
            grace=grace,
            workers=workers,
            cold_start=cold_start,
            adaptive=adaptive,
        )
        super().__init__(name, rates, options)

    def acquire(self, timeout: Duration | None = None, *, cost: int = 1) -> Reservation:
        """Wait until the call may be made. ``timeout``: seconds, by default ``max_wait``.

        Raises ``RateLimitExceeded``, at once if it cannot be in time: ``retry_after`` says how long it
        would have taken. ``BackendUnavailable`` by the policy ``"closed"``.
        """
        return self._reserve(self._deadline(timeout), cost).use()

    def try_acquire(self, *, cost: int = 1) -> Reservation | None:
        """Whether the call may be made now: the place, or ``None``. Never waits."""
        try:
            return self._reserve(self._deadline(0), cost).use()
        except RateLimitExceeded:
            return None

    def reserve(self, timeout: Duration | None = None, *, cost: int = 1, spaced: bool = False) -> Reservation:
        """Book the first place and do not wait for it. Raises as ``acquire`` does.

        ``spaced``: if it has to wait, not right behind the place before, but so that places are spread evenly over
        the window: for work that is handed out and had better not all come at once.
        """
        return self._reserve(self._deadline(timeout), cost, spaced)

    def _reserve(self, deadline: float, cost: int, spaced: bool = False) -> Reservation:
        asked = self._asked
        return asked.book(deadline, asked._units(cost), spaced)

    async def aacquire(self, timeout: Duration | None = None, *, cost: int = 1) -> Reservation:
        """``acquire`` for coroutines. A cancelled one leaves its place to others."""
        return await (await self._areserve(self._deadline(timeout), cost)).ause()

    async def atry_acquire(self, *, cost: int = 1) -> Reservation | None:
        """``try_acquire`` for coroutines."""
        try:
            return await (await self._areserve(self._deadline(0), cost)).ause()
        except RateLimitExceeded:
            return None

    async def areserve(self, timeout: Duration | None = None, *, cost: int = 1) -> Reservation:
        """``reserve`` for coroutines."""
        return await self._areserve(self._deadline(timeout), cost)

    async def _areserve(self, deadline: float, cost: int) -> Reservation:
        asked = self._asked
        return await asked.abook(deadline, asked._units(cost))

    async def abook(self, deadline: float, cost: int) -> Reservation:
        """``book`` for coroutines."""
        place = self._new(cost, deadline)
        if (standing := self._outage.standing()) is not None:
            place._desk = self.without(place, standing)
            return place
        sent, watch = monotonic(), watch_of(self.name)
        question = self.store.areserve(self.terms, cost, self._longest(deadline), watch.lonely)
        watch.booking += 1
        try:
            answer = await kept(self.name, place._desk, cost, question)
        except BackendUnavailable as error:
            place._desk = self.without(place, error)
            return place
        finally:
            watch.booking -= 1
        return self._or_raise(self._given(place, sent, answer), deadline)

    def penalize(self, retry_after: Any) -> float:
        """The other side asks for a pause: nobody goes for so long, in any process; who waits keeps its place in line.

        ``retry_after``: seconds, a timedelta, or the header as it came: seconds or an HTTP date, compared with the
        store's clock. At most ``max_wait``. Seconds that everybody waits from now; raises ``BackendUnavailable``.
        """
        limiter = self.shared or self
        asked = pushback(retry_after, name=limiter.name)
        penalty = limiter.store.penalize(limiter.terms, asked, limiter.limit.max_wait)
        changed(limiter.name)
        events.pushback(limiter.name, penalty)
        return penalty.wait / 1_000_000

    async def apenalize(self, retry_after: Any) -> float:
        """``penalize`` for coroutines."""
        limiter = self.shared or self
        asked = pushback(retry_after, name=limiter.name)
        penalty = await limiter.store.apenalize(limiter.terms, asked, limiter.limit.max_wait)
        changed(limiter.name)
        events.pushback(limiter.name, penalty)
        return penalty.wait / 1_000_000

    def usage(self) -> RateUsage:
        """How it stands, in all processes together. Raises ``BackendUnavailable``."""
        return usage_of(self.in_force, self.store.use(self.terms))

    async def ausage(self) -> RateUsage:
        """``usage`` for coroutines."""
        return usage_of(self.in_force, await self.store.ause(self.terms))

    def reset(self) -> None:
        """Forget what was used and booked, pauses too; who sleeps books again. Raises ``BackendUnavailable``."""
        self.store.reset(self.terms)
        changed(self.name)

    async def areset(self) -> None:
        """``reset`` for coroutines."""
        await self.store.areset(self.terms)
        changed(self.name)

    def adjust(self, share: float) -> None:
        """Let only this share of the limit be in force, 1.0 being all of it, until it is adjusted or reset, or a
        day has passed without a call.

        Raises ``BackendUnavailable``.
        """
        if type(share) not in (int, float) or not 0.000_001 <= share <= 1:
            raise TaskLockError(f"a share of the limit is more than 0 and at most 1, not {share!r}", name=self.name)
        self.store.adjust(self.terms, round(share * 1_000_000))

    def __enter__(self) -> Reservation:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing: the call was made."""

    async def __aenter__(self) -> Reservation:
        return await self.aacquire()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing: the call was made."""
