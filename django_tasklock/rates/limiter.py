"""``RateLimiter``: one limit for all threads, processes and machines."""

from __future__ import annotations

import copy
import difflib
from typing import Any, Self

from django_tasklock.backends.contract.rates import TENANT, Algorithm, RateStore, Terms
from django_tasklock.conf import Duration, get_settings
from django_tasklock.exceptions import BackendUnavailable, RateLimitExceeded, TaskLockError
from django_tasklock.names import clean, says_address
from django_tasklock.rates import events
from django_tasklock.rates.booking import Booking
from django_tasklock.rates.notation import microseconds, parse, pushback
from django_tasklock.rates.options import Limit, OnOutage, check_share, limit_of
from django_tasklock.rates.reservation import Part, Reservation, parts_of
from django_tasklock.rates.usage import RateUsage, usage_of
from django_tasklock.rates.watch import note_change
from django_tasklock.types import monotonic


class RateLimiter:
    """At most so many calls in any window, counted where they are made. See docs/limits.md.

    ``rates``: ``"100/m"``, ``"10/s", "5000/d"``, ``(100, 60)``; without any, what
    ``TASKLOCK["RATE_LIMITS"]`` has under ``name``. All rates hold at once, or the call waits.

    ``algorithm``, with the most units it lets through in any window of length W, at a limit of L:

    * ``"window"``: L. The default; exact.
    * ``"paced"``: L, evenly spread: one every W/L. For APIs that dislike bursts, and for very large limits.
    * ``"bucket"``: L + ``burst`` (by default a tenth of L). For APIs that document a token bucket.

    A caller books a slot, sleeps once, goes: in order of arrival, up to ``margin`` (50 ms or 0.2 % of
    the window) late. ``max_wait``: seconds, how far ahead slots may be booked. ``cold_start="wait"``: if
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
        name = clean(name)
        limit = limit_of(name, rates or configured(name), **options)
        self.name = name
        """The name as the store has it; a tenant's has the limiter's before it."""
        self.shared: Self | None = None
        """Of a tenant: the limit that all tenants share."""
        self.booking = Booking(limit, limit.terms(name), name)

    def tenant(self, tenant: object, *rates: Any) -> Self:
        """Return the limiter of one tenant: its own quota, inside the one that all share.

        ``rates``: that quota, by default what ``tenants=`` says. A tenant that is ``None`` or empty is one
        of its own, the default tenant, and so is whoever asks a limiter with ``tenants=`` for none. Raises
        ``TaskLockError`` for an object that has no text of its own.
        """
        whole, limit, root = self.shared or self, self.limit, self.booking.root
        own = parse(rates, margin=limit.margin, name=root) if rates else limit.tenants
        if not own:
            raise TaskLockError(
                f"rate limit {root!r} has no quota for tenants: pass tenants='10/m', or tenant(key, '10/m')", name=root
            )
        key = "" if tenant is None else str(tenant)
        if not isinstance(tenant, str) and says_address(key):
            raise TaskLockError(
                f"rate limit {root!r}: tenant {key[:60]} says where it is in memory, so each would have a limit of its"
                " own; pass its primary key",
                name=root,
            )
        if key:
            clean(key)
        limiter = copy.copy(whole)
        limiter.name = f"{root}{TENANT}{key}"
        limiter.booking = Booking(limit, limit.terms(limiter.name, own), root)
        limiter.shared = whole
        return limiter

    @property
    def limit(self) -> Limit:
        """The options of this limiter, checked."""
        return self.booking.limit

    @property
    def terms(self) -> Terms:
        """The terms that its own process has of it."""
        return self.booking.terms

    @property
    def store(self) -> RateStore:
        """The store that keeps it."""
        return self.booking.stored.store

    @property
    def in_force(self) -> Terms:
        """The terms that hold: those of its store, as far as this process knows."""
        return self.booking.stored.in_force

    def acquire(self, timeout: Duration | None = None, *, cost: int = 1) -> Reservation:
        """Wait until the call may be made. ``timeout``: seconds, by default ``max_wait``.

        Raises ``RateLimitExceeded``, at once if it cannot be in time: ``retry_after`` says how long it
        would have taken. ``BackendUnavailable`` by the policy ``"closed"``.
        """
        return self._checked(cost).book(self._deadline(timeout), cost).use()

    def try_acquire(self, *, cost: int = 1) -> Reservation | None:
        """Return the reservation if the call may be made now, ``None`` if not. Never waits."""
        try:
            return self._checked(cost).book(self._deadline(0), cost).use()
        except RateLimitExceeded:
            return None

    def reserve(self, timeout: Duration | None = None, *, cost: int = 1, spaced: bool = False) -> Reservation:
        """Book the first slot and do not wait for it. Raises as ``acquire`` does.

        ``spaced``: if it has to wait, not right behind the one before, but so that calls are spread evenly over
        the window: for work that is handed out and had better not all come at once.
        """
        return self._checked(cost).book(self._deadline(timeout), cost, spaced)

    def reserve_many(self, number: int, timeout: Duration | None = None, *, cost: int = 1) -> list[Reservation]:
        """Book so many, all or none, spread evenly: for work that is handed out. Raises as ``acquire`` does."""
        limiter = self._checked(cost)
        return limiter.booking.book_many(limiter, self._deadline(timeout), cost, number)

    async def aacquire(self, timeout: Duration | None = None, *, cost: int = 1) -> Reservation:
        """Do what ``acquire`` does, for coroutines. A cancelled one leaves its slot to others."""
        return await (await self._checked(cost).abook(self._deadline(timeout), cost)).ause()

    async def atry_acquire(self, *, cost: int = 1) -> Reservation | None:
        """Do what ``try_acquire`` does, for coroutines."""
        try:
            return await (await self._checked(cost).abook(self._deadline(0), cost)).ause()
        except RateLimitExceeded:
            return None

    async def areserve(self, timeout: Duration | None = None, *, cost: int = 1) -> Reservation:
        """Do what ``reserve`` does, for coroutines."""
        return await self._checked(cost).abook(self._deadline(timeout), cost)

    def book(self, deadline: float, cost: int, spaced: bool = False) -> Reservation:
        """Do what ``reserve`` does, with a deadline by this process's clock, and nothing of tenants."""
        return self.booking.book(self, deadline, cost, spaced)

    async def abook(self, deadline: float, cost: int) -> Reservation:
        """Do what ``book`` does, for coroutines."""
        return await self.booking.abook(self, deadline, cost)

    def go_without(self, reservation: Reservation, error: BackendUnavailable) -> None:
        """Book it elsewhere while the store cannot be asked. Raises ``error``, or ``RateLimitExceeded``."""
        self.booking.go_without(reservation, error)

    def check_call(self, timeout: Duration | None, cost: int) -> None:
        """Raise ``TaskLockError`` for a timeout or a cost with which no call can be made."""
        self._checked(cost)
        self._deadline(timeout)

    def _checked(self, cost: int = 1) -> Self:
        """Return the limiter whose quota a call uses, without a tenant that of the default one; a cost that fits into
        it.
        """
        limiter = self.tenant(None) if self.booking.limit.tenants and self.shared is None else self
        if type(cost) is not int or cost != 1:  # 1 fits into all of them
            limiter.booking.check_cost(cost)
            if limiter.shared is not None:
                limiter.shared.booking.check_cost(cost)
        return limiter

    def _deadline(self, timeout: Duration | None) -> float:
        """Return the deadline by this process's clock."""
        longest = self.booking.limit.max_wait
        if timeout is not None:
            longest = microseconds(timeout, "timeout", name=self.name, zero=True)
        return monotonic() + longest / 1_000_000

    def restore(self, token: str, timeout: Duration | None = None, *, spaced: bool = False) -> Reservation:
        """Take up the reservation that another process has moved: its own slot if that is still to come, another one
        if it was missed. An empty token: the next slot. Raises as ``acquire`` does."""
        if not token:
            return self._checked().book(self._deadline(timeout), 1, spaced)
        return self._checked()._restored(parts_of(token, self.name), self._deadline(timeout), spaced)

    def _restored(self, parts: list[Part], deadline: float, spaced: bool) -> Reservation:
        own, *rest = parts
        if not rest or self.shared is None:
            return self.booking.resume(self, deadline, own, spaced)
        found = self.booking.past(self, deadline, own)  # its own turn has come before
        found.spaced = spaced
        try:
            found.shared = self.shared._restored(rest, deadline, spaced)
        except TaskLockError:
            found.cancel()
            raise
        found.missed = found.shared.missed
        return found

    def give_back(self, token: str) -> bool:
        """Cancel a reservation that was moved and that nobody will use. False: nothing was left to give back."""
        limiter: RateLimiter | None = self._checked()
        returned = False
        for part in parts_of(token, self.name) if token else ():
            if limiter is None:
                break
            returned = limiter.booking.stored.cancel(part.cost, part.slot, part.edition)
            limiter = limiter.shared
        return returned

    def penalize(self, retry_after: Any) -> float:
        """Stop everybody for so long, in any process, because the other side asks for a pause. The line stays in order.

        ``retry_after``: seconds, a timedelta, or the header as it came: seconds or an HTTP date, compared with the
        store's clock. At most ``max_wait``. Seconds that everybody waits from now; raises ``BackendUnavailable``.
        """
        limiter = self.shared or self
        pause = pushback(retry_after, name=limiter.name)
        penalty = limiter.store.penalize(limiter.terms, pause, limiter.limit.max_wait)
        note_change(limiter.name)
        events.pushback(limiter.name, penalty)
        return penalty.wait / 1_000_000

    async def apenalize(self, retry_after: Any) -> float:
        """Do what ``penalize`` does, for coroutines."""
        limiter = self.shared or self
        pause = pushback(retry_after, name=limiter.name)
        penalty = await limiter.store.apenalize(limiter.terms, pause, limiter.limit.max_wait)
        note_change(limiter.name)
        events.pushback(limiter.name, penalty)
        return penalty.wait / 1_000_000

    def usage(self) -> RateUsage:
        """Return how it stands, in all processes together. Raises ``BackendUnavailable``."""
        return usage_of(self.in_force, self.store.use(self.terms))

    async def ausage(self) -> RateUsage:
        """Do what ``usage`` does, for coroutines."""
        return usage_of(self.in_force, await self.store.ause(self.terms))

    def reset(self) -> None:
        """Forget what was used and booked, pauses too; whoever sleeps books again. Raises ``BackendUnavailable``."""
        self.store.reset(self.terms)
        note_change(self.name)

    async def areset(self) -> None:
        """Do what ``reset`` does, for coroutines."""
        await self.store.areset(self.terms)
        note_change(self.name)

    def adjust(self, share: float) -> None:
        """Let only this share of the limit be in force, 1.0 being all of it, until it is adjusted or reset, or a
        day has passed without a call.

        Raises ``BackendUnavailable``.
        """
        check_share(share, self.name)
        self.store.adjust(self.terms, round(share * 1_000_000))

    def __enter__(self) -> Reservation:
        return self.acquire()

    def __exit__(self, *how: object) -> None:
        """Do nothing: the call was made."""

    async def __aenter__(self) -> Reservation:
        return await self.aacquire()

    async def __aexit__(self, *how: object) -> None:
        """Do nothing: the call was made."""


def configured(name: str) -> object:
    """Return what ``TASKLOCK["RATE_LIMITS"]`` has under this name. Raises ``TaskLockError`` if that is nothing."""
    limits = get_settings().RATE_LIMITS
    if name not in limits:
        near = difflib.get_close_matches(str(name), list(limits), n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else "write RateLimiter(name, '100/m'), or configure it"
        raise TaskLockError(f"TASKLOCK['RATE_LIMITS'] has no {name!r}; {hint}", name=str(name))
    return limits[name]
