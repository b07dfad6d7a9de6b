"""``RateLimiter``: a rate limit that all threads, processes and machines share."""

from __future__ import annotations

import copy
import difflib
from typing import Any, Self, Unpack

from django_tasklock.backends import get_backend
from django_tasklock.backends.contract.rates import TENANT, Pushback, RateStore
from django_tasklock.conf import Duration, get_settings
from django_tasklock.exceptions import BackendUnavailable, RateLimitExceeded, TaskLockError
from django_tasklock.names import clean, says_address
from django_tasklock.rates import events
from django_tasklock.rates.answers import next_backoff, read_pause
from django_tasklock.rates.notation import microseconds, parse_rates, parse_retry_after
from django_tasklock.rates.options import LimiterOptions, check_share, parse_options
from django_tasklock.rates.outage import outage_of
from django_tasklock.rates.reservation import Cost, Reservation, check_names, cost_at
from django_tasklock.rates.usage import RateUsage, usage_of
from django_tasklock.types import monotonic


class RateLimiter:
    """Limits the number of calls in any window, measured where the calls are made. See docs/limits.md.

    ``rates``: ``"100/m"``, ``"10/s", "5000/d"`` or ``(100, 60)``; by default those of ``name`` in
    ``TASKLOCK["RATE_LIMITS"]``. A call waits until all rates allow it: no window of a rate has more units than its
    limit, wherever it begins.

    A caller books a slot, sleeps until shortly before, confirms it and makes its call. Callers are served in order of
    arrival. ``margin``: the seconds by which a call may be late, by default 50 ms or 0.2 % of the window. ``max_wait``:
    the seconds by which slots may be booked in advance. ``adaptive``: lower the limit on pushback, and raise it again
    while it is used; a float is the least share of it. ``tenants``: the quota of each tenant.

    ``on_unavailable``, for a store that is down: ``"closed"`` raises ``BackendUnavailable``, ``"open"`` allows calls.

    Raises ``TaskLockError`` for options that cannot work, before anything is stored.
    """

    def __init__(self, name: str, *rates: Any, **options: Unpack[LimiterOptions]) -> None:
        name = clean(name)
        self.name = name
        """The name in the store; that of a tenant begins with the limiter's."""
        self.limit = parse_options(name, rates or configured_rates(name), **options)
        """Its validated options."""
        self.terms = self.limit.terms(name)
        """Its terms, as its store knows them."""
        self.shared: Self | None = None
        """For a tenant, the limiter that all tenants share."""
        self.others: tuple[Self, ...] = ()
        """Limiters that count the same calls."""
        self.outage = outage_of(name)
        """The outage of the store, if there is one; all tenants share it."""

    def tenant(self, tenant: object, *rates: Any) -> Self:
        """Return the limiter of one tenant: its own quota, within the limit that all tenants share.

        ``rates``: the quota, by default that of ``tenants=``. ``None`` and an empty text are the default tenant, which
        calls without a tenant also use. Limits together with this one that have tenants count it, too. Raises
        ``TaskLockError`` for an object whose text has its memory address.
        """
        whole, limit = self.shared or self, self.limit
        own = parse_rates(rates, margin=limit.margin, name=whole.name) if rates else limit.tenants
        if not own:
            text = f"rate limit {whole.name!r} has no quota for tenants: pass tenants='10/m', or tenant(key, '10/m')"
            raise TaskLockError(text, name=whole.name)
        key = "" if tenant is None else str(tenant)
        if not isinstance(tenant, str) and says_address(key):
            raise TaskLockError(
                f"rate limit {whole.name!r}: tenant {key[:60]} says where it is in memory, so each would have a limit"
                " of its own; pass its primary key",
                name=whole.name,
            )
        if key:
            clean(key)
        limiter = copy.copy(whole)
        limiter.name = f"{whole.name}{TENANT}{key}"
        limiter.terms = limit.terms(limiter.name, own)
        limiter.shared = whole
        limiter.others = tuple(
            one.tenant(tenant) if one.limit.tenants and one.shared is None else one for one in whole.others
        )
        return limiter

    def together_with(self, *others: Self) -> Self:
        """Return a limiter of calls that this one and ``others`` count, each by a cost of its own.

        A call is made when all of them allow it, and counts in each or in none. ``cost`` and ``settle`` take a dict by
        their names. Everything else is said of, and done to, this one.
        """
        names = [one.root for one in (self, *self.others, *others)]
        if len(set(names)) < len(names):
            raise TaskLockError(f"these limiters are not different: {', '.join(map(repr, names))}", name=self.name)
        limiter = copy.copy(self)
        limiter.others = (*self.others, *others)
        return limiter

    @property
    def root(self) -> str:
        """The limiter's name; that of a tenant's is the one that all tenants share."""
        return self.name if self.shared is None else self.shared.name

    @property
    def booked_at(self) -> list[Self]:
        """The limiters at which a call is booked, in that order."""
        found = [self] if self.shared is None else [self, self.shared]
        for other in self.others:
            own = other.tenant(None) if other.limit.tenants and other.shared is None else other
            found += own.booked_at
        return found

    @property
    def store(self) -> RateStore:
        """The store of the current settings."""
        return get_backend().rates

    # Calls

    def acquire(self, blocking_timeout: Duration | None = None, *, cost: Cost = 1) -> Reservation:
        """Wait until the call is allowed. ``blocking_timeout``: seconds, by default ``max_wait``.

        Raises ``RateLimitExceeded`` at once if the call would not be allowed in time; ``retry_after`` is the wait that
        it would have taken. Raises ``BackendUnavailable`` with the policy ``"closed"``.
        """
        return self._new(blocking_timeout, cost).book().use()

    def try_acquire(self, *, cost: Cost = 1) -> Reservation | None:
        """Return a reservation if the call is allowed now, ``None`` otherwise. It does not wait."""
        try:
            return self.acquire(0, cost=cost)
        except RateLimitExceeded:
            return None

    def reserve(self, blocking_timeout: Duration | None = None, *, cost: Cost = 1, spaced: bool = False) -> Reservation:
        """Book the first free slot without waiting for it. Raises like ``acquire``.

        ``spaced``: if the slot is not now, spread the slots evenly over the window, so that work which is distributed
        to others does not come all at once.
        """
        return self._new(blocking_timeout, cost, spaced).book()

    def reserve_many(
        self, number: int, blocking_timeout: Duration | None = None, *, cost: Cost = 1
    ) -> list[Reservation]:
        """Book ``number`` slots, all or none, spread evenly over the window. Raises like ``acquire``."""
        if type(number) is not int or number < 0:
            raise TaskLockError(f"number must be a whole number, 0 or more, not {number!r}", name=self.name)
        several = [self._new(blocking_timeout, cost) for _ in range(number)]
        if several:
            several[0].limiter._book_all(several, cost)
        return several

    def _book_all(self, several: list[Reservation], given: Cost) -> None:
        """Book these reservations, all or none."""
        sent, first = monotonic(), several[0]
        cost = cost_at(self, given)
        try:
            answers = self.store.reserve_many(self.terms, cost, first.max_wait, len(several))
        except BackendUnavailable as error:
            self.go_without(error)
            return
        self.outage.end()
        try:
            for new, answer in zip(several, answers, strict=False):
                events.count_answer(self.name, answer)
                new.keep(self, cost, answer, sent)
        except BaseException:
            for new in reversed(several):
                new.cancel()
            raise

    async def aacquire(self, blocking_timeout: Duration | None = None, *, cost: Cost = 1) -> Reservation:
        """Do what ``acquire`` does, for coroutines. If it is cancelled, the slot is returned."""
        return await (await self._new(blocking_timeout, cost).abook()).ause()

    async def atry_acquire(self, *, cost: Cost = 1) -> Reservation | None:
        """Do what ``try_acquire`` does, for coroutines."""
        try:
            return await self.aacquire(0, cost=cost)
        except RateLimitExceeded:
            return None

    def go_without(self, error: BackendUnavailable) -> None:
        """Let a call be made without the store, or raise ``error``, as ``on_unavailable`` says."""
        self.outage.apply(self.name, self.limit.on_unavailable, error)

    def check_call(self, blocking_timeout: Duration | None, cost: Cost) -> None:
        """Raise ``TaskLockError`` for an invalid ``blocking_timeout``, or a cost that exceeds the limit."""
        self._new(blocking_timeout, cost)

    def _new(self, blocking_timeout: Duration | None, cost: Cost = 1, spaced: bool = False) -> Reservation:
        """Return a reservation without a slot, at the limiter to use: the default tenant's where there are tenants."""
        limiter = self.tenant(None) if self.limit.tenants and self.shared is None else self
        check_names(limiter, cost)
        for one in limiter.booked_at:
            one.check_cost(cost_at(one, cost))
        max_wait = limiter.limit.max_wait
        if blocking_timeout is not None:
            max_wait = microseconds(blocking_timeout, "blocking_timeout", name=self.name, zero=True)
        return Reservation(limiter, cost, monotonic() + max_wait / 1_000_000, spaced)

    def check_cost(self, cost: int) -> None:
        """Raise ``TaskLockError`` for a cost that the limit never allows."""
        if type(cost) is not int or cost < 1:
            raise TaskLockError(f"cost must be a whole number, 1 or more, not {cost!r}", name=self.name)
        for rate in self.terms.rates:
            if cost > rate.limit:
                text = f"a cost of {cost} does not fit into the limit {rate} of {self.name!r}"
                raise TaskLockError(text, name=self.name)

    # Reservations that move

    def restore(self, token: str, blocking_timeout: Duration | None = None, *, spaced: bool = False) -> Reservation:
        """Restore a reservation that another process has moved here: its slot, or another one if that was missed.

        An empty token books the next slot. Raises like ``acquire``.
        """
        if not token:
            return self.reserve(blocking_timeout, spaced=spaced)
        return self._new(blocking_timeout, spaced=spaced).carry(token).restore()

    def give_back(self, token: str) -> bool:
        """Cancel a moved reservation that will not be used. Return False if there was nothing left to return."""
        return bool(token) and self._new(None).carry(token).cancel()

    # Pushback

    def penalize(self, retry_after: Any) -> float:
        """Pause the calls of all processes, because the called service asks for it. The queue keeps its order.

        ``retry_after``: seconds, a timedelta, or the value of the header: seconds or an HTTP date, which is compared
        with the store's clock. The pause is at most ``max_wait``. Return its seconds. Raises ``BackendUnavailable``.
        """
        limiter = self.shared or self
        return limiter._penalize(parse_retry_after(retry_after, name=limiter.name))

    def penalize_from(self, response: Any) -> float:
        """Pause the calls of all processes for as long as a response of the called service asks. Return the seconds.

        ``response``: of requests, httpx, aiohttp, or whatever has ``headers``. ``Retry-After`` and its kin are read
        leniently: seconds, milliseconds, ``6m0s``, dates and times. An answer that does not say, or says nothing that
        can be understood, is a WARNING with its value, and a pause of a second, doubled at each that follows, up to a
        minute. The pause is at most ``max_wait``; a longer one is named in the log.

        Raises ``BackendUnavailable``, and ``TaskLockError`` for an object that is no response.
        """
        limiter = self.shared or self
        pause, said = read_pause(response, name=limiter.name)
        if pause is None:
            seconds = next_backoff(limiter.name)
            events.unreadable_pushback(limiter.name, said, seconds)
            pause = Pushback(round(seconds * 1_000_000))
        return limiter._penalize(pause)

    def _penalize(self, pause: Pushback) -> float:
        penalty = self.store.penalize(self.terms, pause, self.limit.max_wait)
        events.pushback(self.name, pause, penalty, self.limit.max_wait)
        return penalty.wait / 1_000_000

    # Its state

    def usage(self) -> RateUsage:
        """Return the usage by all processes together. Raises ``BackendUnavailable``."""
        return usage_of(self.terms, self.store.usage(self.terms))

    def reset(self) -> None:
        """Delete what was used and booked, and pauses. Sleeping callers book again. Raises ``BackendUnavailable``."""
        self.store.reset(self.terms)

    def adjust(self, share: float) -> None:
        """Set the share of the limit that applies, 1.0 being all of it.

        It applies until it is adjusted again, the limiter is reset, or a day has passed without a call. Raises
        ``BackendUnavailable``.
        """
        check_share(share, self.name)
        self.store.adjust(self.terms, round(share * 1_000_000))

    # For coroutines

    async def apenalize(self, retry_after: Any) -> float:
        """Do what ``penalize`` does, for coroutines."""
        return await self.store.in_thread(self.penalize, retry_after)

    async def apenalize_from(self, response: Any) -> float:
        """Do what ``penalize_from`` does, for coroutines."""
        return await self.store.in_thread(self.penalize_from, response)

    async def ausage(self) -> RateUsage:
        """Do what ``usage`` does, for coroutines."""
        return await self.store.in_thread(self.usage)

    async def areset(self) -> None:
        """Do what ``reset`` does, for coroutines."""
        await self.store.in_thread(self.reset)

    async def aadjust(self, share: float) -> None:
        """Do what ``adjust`` does, for coroutines."""
        await self.store.in_thread(self.adjust, share)

    def __enter__(self) -> Reservation:
        return self.acquire()

    def __exit__(self, *how: object) -> None:
        """Do nothing: the call was made."""

    async def __aenter__(self) -> Reservation:
        return await self.aacquire()

    async def __aexit__(self, *how: object) -> None:
        """Do nothing: the call was made."""

    def __repr__(self) -> str:
        return f"<RateLimiter {self.name!r} {', '.join(map(str, self.terms.rates))}>"


def configured_rates(name: str) -> object:
    """Return the entry of this name in ``TASKLOCK["RATE_LIMITS"]``. Raises ``TaskLockError`` if there is none."""
    limits = get_settings().RATE_LIMITS
    if name not in limits:
        near = difflib.get_close_matches(str(name), list(limits), n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else "write RateLimiter(name, '100/m'), or configure it"
        raise TaskLockError(f"TASKLOCK['RATE_LIMITS'] has no {name!r}; {hint}", name=str(name))
    return limits[name]
