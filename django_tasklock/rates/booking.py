"""What a ``RateLimiter`` knows and decides, without its verbs: both halves, sync and async, share it."""

from __future__ import annotations

import copy
import difflib
from typing import Any, Self

from django_tasklock.backends import get_backend
from django_tasklock.backends.contract.rates import Booked, RateStore, Refused, Terms
from django_tasklock.conf import Duration, get_settings
from django_tasklock.exceptions import BackendUnavailable, TaskLockError
from django_tasklock.names import clean
from django_tasklock.rates import events
from django_tasklock.rates.events import seen
from django_tasklock.rates.notation import microseconds, parse
from django_tasklock.rates.options import TENANT, limit_of
from django_tasklock.rates.outage import Outage, outage_of, share_of
from django_tasklock.rates.reservation import Reservation
from django_tasklock.rates.schedule import Desk
from django_tasklock.rates.terms import agreed
from django_tasklock.types import monotonic


class LimiterBase:
    """The terms of a limiter and its policies. Use ``RateLimiter``."""

    def __init__(self, name: str, rates: tuple[Any, ...], options: dict[str, Any]) -> None:
        given: object = rates
        if not rates:
            configured = get_settings().RATE_LIMITS
            if name not in configured:
                near = difflib.get_close_matches(str(name), list(configured), n=1, cutoff=0.5)
                hint = f"did you mean {near[0]!r}?" if near else "write RateLimiter(name, '100/m'), or configure it"
                raise TaskLockError(f"TASKLOCK['RATE_LIMITS'] has no {name!r}; {hint}", name=str(name))
            given = configured[name]
        self.limit = limit_of(name, given, **options)
        self.name = name
        """As the store has it; a tenant's has the limiter's before it."""
        self.terms = self.limit.terms(name)
        self.shared: Self | None = None
        """Of a tenant: the limit that all tenants share."""
        self._root = name

    def tenant(self, tenant: object, *rates: Any) -> Self:
        """The limiter of one tenant: its own quota, inside the one that all share.

        ``rates``: that quota, by default what ``tenants=`` says. A tenant that is ``None`` or empty is one
        of its own, the default tenant, and so is whoever asks a limiter with ``tenants=`` for none.
        """
        whole = self.shared or self
        own = parse(rates, margin=self.limit.margin, name=self._root) if rates else self.limit.tenants
        if not own:
            raise TaskLockError(
                f"rate limit {self._root!r} has no quota for tenants: pass tenants='10/m', or tenant(key, '10/m')",
                name=self._root,
            )
        key = "" if tenant is None else str(tenant)
        if key:
            clean(key)
        limiter = copy.copy(whole)
        limiter.name = f"{self._root}{TENANT}{key}"
        limiter.terms = self.limit.terms(limiter.name, own)
        limiter.shared = whole
        return limiter

    @property
    def store(self) -> RateStore:
        """Where it is kept."""
        return agreed(get_backend().rates)

    @property
    def in_force(self) -> Terms:
        """The terms that hold: those of its store, as far as this process knows."""
        return self.store.in_force(self.terms)

    @property
    def _asked(self) -> Self:
        """Whose quota a call without a tenant uses."""
        return self.tenant(None) if self.limit.tenants and self.shared is None else self

    @property
    def _outage(self) -> Outage:
        return outage_of(self._root)

    def _deadline(self, timeout: Duration | None) -> float:
        """By this process's clock."""
        if timeout is None:
            return monotonic() + self.limit.max_wait / 1_000_000
        return monotonic() + microseconds(timeout, "timeout", name=self.name, zero=True) / 1_000_000

    def _units(self, cost: int) -> int:
        if type(cost) is int and cost == 1:
            return 1  # that fits into all of them
        if type(cost) is not int or cost < 1:
            raise TaskLockError(f"cost must be a whole number, 1 or more, not {cost!r}", name=self.name)
        for terms in (self.terms, self.shared.terms if self.shared else self.terms):
            for rate in terms.rates:
                most = terms.burst_of(rate) if terms.algorithm == "bucket" else rate.limit
                if cost > most:
                    what = f"a bucket of {most}" if terms.algorithm == "bucket" else f"the limit {rate}"
                    raise TaskLockError(f"a cost of {cost} does not fit into {what} of {terms.name!r}", name=self.name)
        return cost

    def _longest(self, deadline: float, now: float | None = None) -> int:
        left = int((deadline - (monotonic() if now is None else now)) * 1_000_000)
        return min(self.limit.max_wait, left) if left > 0 else 0

    def _given(self, place: Reservation, sent: float, answer: Booked | Refused) -> Reservation | Refused:
        self._outage.answered()
        if isinstance(answer, Refused):
            seen(self.name, sent, answer)
            return answer
        place.at(answer, sent)
        return place

    def _new(self, cost: int, deadline: float) -> Reservation:
        return Reservation(self, Desk(self.store, self.terms), cost, deadline)  # type: ignore[arg-type]

    def _or_raise(self, place: Reservation | Refused, deadline: float) -> Reservation:
        if isinstance(place, Refused):
            raise events.refused(self.in_force, place.wait, self._longest(deadline))
        return place

    def without(self, place: Any, error: BackendUnavailable) -> Desk:
        """Where ``place`` stands while the store cannot be asked. Raises ``error``, or ``RateLimitExceeded``."""
        desk: Desk = place._desk
        action = self._outage.failed(self.name, self.limit, error)
        if action == "local" and self.shared is None:  # of a tenant the shared limit's part is what counts
            desk = Desk(self._outage.local, share_of(self.in_force, self.limit.workers))
            sent, longest = monotonic(), self._longest(place.deadline)
            answer = desk.store.reserve(desk.terms, place.cost, longest)
            if isinstance(answer, Refused):
                place.state = "cancelled"
                raise events.refused(desk.terms, answer.wait, longest)
            place.at(answer, sent)
        return desk
