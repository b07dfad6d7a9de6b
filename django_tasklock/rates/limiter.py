"""``RateLimiter``: a rate limit that all threads, processes and machines share."""

from __future__ import annotations

import copy
import difflib
from typing import Any, Self, Unpack

from django_tasklock.backends.contract.rates import TENANT, Penalty, Pushback, RateStore, Terms
from django_tasklock.conf import Duration, get_settings
from django_tasklock.exceptions import BackendUnavailable, RateLimitExceeded, TaskLockError
from django_tasklock.names import clean, says_address
from django_tasklock.rates import events
from django_tasklock.rates.answers import read_pause
from django_tasklock.rates.booker import Booker
from django_tasklock.rates.limiter_view import record_change, view_of
from django_tasklock.rates.notation import microseconds, parse_rates, parse_retry_after
from django_tasklock.rates.options import LimiterOptions, LimitOptions, check_share, parse_options
from django_tasklock.rates.reservation import Reservation, TokenPart, parse_token
from django_tasklock.rates.usage import RateUsage, usage_of
from django_tasklock.types import monotonic


class RateLimiter:
    """Limits the number of calls in any window, measured where the calls are made. See docs/limits.md.

    ``rates``: ``"100/m"``, ``"10/s", "5000/d"`` or ``(100, 60)``; by default those of ``name`` in
    ``TASKLOCK["RATE_LIMITS"]``. A call waits until all rates allow it:
    no window of a rate has more units than its limit, wherever it begins.

    A caller books a slot, sleeps until shortly before, confirms it and makes its call. Callers are served in order of
    arrival. ``margin``: the seconds by which a call may be late, by default 50 ms or 0.2 % of the window. ``max_wait``:
    the seconds by which slots may be booked in advance. ``adaptive``: lower the limit on pushback, and raise it again
    while it is used; a float is the least share of it. ``tenants``: the quota of each tenant.

    ``on_unavailable``, for a store that is down: ``"closed"`` raises ``BackendUnavailable``, ``"open"`` allows calls.

    Raises ``TaskLockError`` for options that cannot work, before anything is stored.
    """

    def __init__(self, name: str, *rates: Any, **options: Unpack[LimiterOptions]) -> None:
        name = clean(name)
        limit = parse_options(name, rates or configured_rates(name), **options)
        self.name = name
        """The name in the store; that of a tenant begins with the limiter's."""
        self.shared: Self | None = None
        """For a tenant, the limiter that all tenants share."""
        self.booker = Booker(limit, limit.terms(name), name)

    def tenant(self, tenant: object, *rates: Any) -> Self:
        """Return the limiter of one tenant: its own quota, within the limit that all tenants share.

        ``rates``: the quota, by default that of ``tenants=``. ``None`` and an empty text are the default tenant, which
        calls without a tenant also use. Raises ``TaskLockError`` for an object whose text has its memory address.
        """
        whole, limit, root = self.shared or self, self.limit, self.booker.limiter_name
        own = parse_rates(rates, margin=limit.margin, name=root) if rates else limit.tenants
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
        limiter.booker = Booker(limit, limit.terms(limiter.name, own), root)
        limiter.shared = whole
        return limiter

    @property
    def limit(self) -> LimitOptions:
        """The validated options of this limiter."""
        return self.booker.limit

    @property
    def terms(self) -> Terms:
        """Its name and rates in the store, for this process: others may have other ones."""
        return self.booker.terms

    @property
    def store(self) -> RateStore:
        """Its store."""
        return self.booker.stored.store

    def acquire(self, timeout: Duration | None = None, *, cost: int = 1) -> Reservation:
        """Wait until the call is allowed. ``timeout``: seconds, by default ``max_wait``.

        Raises ``RateLimitExceeded`` at once if the call would not be allowed in time; ``retry_after`` is the wait that
        it would have taken. Raises ``BackendUnavailable`` with the policy ``"closed"``.
        """
        return self._limiter_for(cost).book(self._deadline(timeout), cost).use()

    def try_acquire(self, *, cost: int = 1) -> Reservation | None:
        """Return a reservation if the call is allowed now, ``None`` otherwise. It does not wait."""
        try:
            return self._limiter_for(cost).book(self._deadline(0), cost).use()
        except RateLimitExceeded:
            return None

    def reserve(self, timeout: Duration | None = None, *, cost: int = 1, spaced: bool = False) -> Reservation:
        """Book the first free slot without waiting for it. Raises like ``acquire``.

        ``spaced``: if the slot is not now, spread the slots evenly over the window, so that work which is distributed
        to others does not come all at once.
        """
        return self._limiter_for(cost).book(self._deadline(timeout), cost, spaced)

    def reserve_many(self, number: int, timeout: Duration | None = None, *, cost: int = 1) -> list[Reservation]:
        """Book ``number`` slots, all or none, spread evenly over the window. Raises like ``acquire``."""
        if type(number) is not int or number < 0:
            raise TaskLockError(f"number must be a whole number, 0 or more, not {number!r}", name=self.name)
        limiter = self._limiter_for(cost)
        return limiter.booker.book_many(limiter, self._deadline(timeout), cost, number)

    async def aacquire(self, timeout: Duration | None = None, *, cost: int = 1) -> Reservation:
        """Do what ``acquire`` does, for coroutines. If it is cancelled, the slot is returned."""
        return await (await self._limiter_for(cost).abook(self._deadline(timeout), cost)).ause()

    async def atry_acquire(self, *, cost: int = 1) -> Reservation | None:
        """Do what ``try_acquire`` does, for coroutines."""
        try:
            return await (await self._limiter_for(cost).abook(self._deadline(0), cost)).ause()
        except RateLimitExceeded:
            return None

    async def areserve(self, timeout: Duration | None = None, *, cost: int = 1) -> Reservation:
        """Do what ``reserve`` does, for coroutines."""
        return await self._limiter_for(cost).abook(self._deadline(timeout), cost)

    def book(self, deadline: float, cost: int, spaced: bool = False) -> Reservation:
        """Do what ``reserve`` does, for this limiter alone, until a deadline on this process's clock."""
        return self.booker.book(self, deadline, cost, spaced)

    async def abook(self, deadline: float, cost: int) -> Reservation:
        """Do what ``book`` does, for coroutines."""
        return await self.booker.abook(self, deadline, cost)

    def go_without(self, reservation: Reservation, error: BackendUnavailable) -> None:
        """Apply ``on_unavailable`` to a reservation. Raises ``error``, or ``RateLimitExceeded``."""
        self.booker.apply_outage_policy(reservation, error)

    def check_call(self, timeout: Duration | None, cost: int) -> None:
        """Raise ``TaskLockError`` for an invalid timeout, or a cost that exceeds the limit."""
        self._limiter_for(cost)
        self._deadline(timeout)

    def _limiter_for(self, cost: int = 1) -> Self:
        """Check the cost, and return the limiter to use: the default tenant's where there are tenants."""
        limiter = self.tenant(None) if self.booker.limit.tenants and self.shared is None else self
        if type(cost) is not int or cost != 1:  # 1 is always valid
            limiter.booker.check_cost(cost)
            if limiter.shared is not None:
                limiter.shared.booker.check_cost(cost)
        return limiter

    def _deadline(self, timeout: Duration | None) -> float:
        """Return the deadline by this process's clock."""
        max_wait = self.booker.limit.max_wait
        if timeout is not None:
            max_wait = microseconds(timeout, "timeout", name=self.name, zero=True)
        return monotonic() + max_wait / 1_000_000

    def restore(self, token: str, timeout: Duration | None = None, *, spaced: bool = False) -> Reservation:
        """Restore a reservation that another process has moved here: its slot, or another one if that was missed.

        An empty token books the next slot. Raises like ``acquire``.
        """
        if not token:
            return self._limiter_for().book(self._deadline(timeout), 1, spaced)
        return self._limiter_for()._restore(parse_token(token, self.name), self._deadline(timeout), spaced)

    def _restore(self, parts: list[TokenPart], deadline: float, spaced: bool) -> Reservation:
        own, *rest = parts
        if not rest or self.shared is None:
            return self.booker.restore(self, deadline, own, spaced)
        found = self.booker.restore_due(self, deadline, own)  # its slot at the tenant's limit came before
        found.spaced = spaced
        try:
            found.shared = self.shared._restore(rest, deadline, spaced)
        except TaskLockError:
            found.cancel()
            raise
        found.missed = found.shared.missed
        return found

    def give_back(self, token: str) -> bool:
        """Cancel a moved reservation that will not be used. Return False if there was nothing left to return."""
        limiter: RateLimiter | None = self._limiter_for()
        returned = False
        for part in parse_token(token, self.name) if token else ():
            if limiter is None:
                break
            returned = limiter.booker.stored.cancel(part.cost, part.slot, part.edition)
            limiter = limiter.shared
        return returned

    def penalize(self, retry_after: Any) -> float:
        """Pause the calls of all processes, because the called service asks for it. The queue keeps its order.

        ``retry_after``: seconds, a timedelta, or the value of the header: seconds or an HTTP date, which is compared
        with the store's clock. The pause is at most ``max_wait``. Return its seconds. Raises ``BackendUnavailable``.
        """
        limiter = self.shared or self
        return limiter._penalize(parse_retry_after(retry_after, name=limiter.name))

    async def apenalize(self, retry_after: Any) -> float:
        """Do what ``penalize`` does, for coroutines."""
        limiter = self.shared or self
        return await limiter._apenalize(parse_retry_after(retry_after, name=limiter.name))

    def penalize_from(self, response: Any) -> float:
        """Pause the calls of all processes for as long as a response of the called service asks. Return the seconds.

        ``response``: of requests, httpx, aiohttp, or whatever has ``headers``. ``Retry-After`` and its kin are read
        leniently: seconds, milliseconds, ``6m0s``, dates and times. An answer that does not say, or says nothing that
        can be understood, is a WARNING with its value, and a pause of a second, doubled at each that follows, up to a
        minute. The pause is at most ``max_wait``; a longer one is named in the log.

        Raises ``BackendUnavailable``, and ``TaskLockError`` for an object that is no response.
        """
        limiter = self.shared or self
        return limiter._penalize(limiter._pause_of(response))

    async def apenalize_from(self, response: Any) -> float:
        """Do what ``penalize_from`` does, for coroutines."""
        limiter = self.shared or self
        return await limiter._apenalize(limiter._pause_of(response))

    def _pause_of(self, response: Any) -> Pushback:
        pause, said = read_pause(response, name=self.name)
        if pause is None:
            seconds = view_of(self.name).next_backoff()
            events.unreadable_pushback(self.name, said, seconds)
            pause = Pushback(round(seconds * 1_000_000))
        return pause

    def _penalize(self, pause: Pushback) -> float:
        penalty = self.store.penalize(self.terms, pause, self.limit.max_wait)
        return self._penalized(pause, penalty)

    async def _apenalize(self, pause: Pushback) -> float:
        penalty = await self.store.apenalize(self.terms, pause, self.limit.max_wait)
        return self._penalized(pause, penalty)

    def _penalized(self, pause: Pushback, penalty: Penalty) -> float:
        record_change(self.name)
        events.pushback(self.name, pause, penalty, self.limit.max_wait)
        return penalty.wait / 1_000_000

    def usage(self) -> RateUsage:
        """Return the usage by all processes together. Raises ``BackendUnavailable``."""
        return usage_of(self.terms, self.store.usage(self.terms))

    async def ausage(self) -> RateUsage:
        """Do what ``usage`` does, for coroutines."""
        return usage_of(self.terms, await self.store.ausage(self.terms))

    def reset(self) -> None:
        """Delete what was used and booked, and pauses. Sleeping callers book again. Raises ``BackendUnavailable``."""
        self.store.reset(self.terms)
        record_change(self.name)

    async def areset(self) -> None:
        """Do what ``reset`` does, for coroutines."""
        await self.store.areset(self.terms)
        record_change(self.name)

    def adjust(self, share: float) -> None:
        """Set the share of the limit that applies, 1.0 being all of it.

        It applies until it is adjusted again, the limiter is reset, or a day has passed without a call. Raises
        ``BackendUnavailable``.
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


def configured_rates(name: str) -> object:
    """Return the entry of this name in ``TASKLOCK["RATE_LIMITS"]``. Raises ``TaskLockError`` if there is none."""
    limits = get_settings().RATE_LIMITS
    if name not in limits:
        near = difflib.get_close_matches(str(name), list(limits), n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else "write RateLimiter(name, '100/m'), or configure it"
        raise TaskLockError(f"TASKLOCK['RATE_LIMITS'] has no {name!r}; {hint}", name=str(name))
    return limits[name]
