"""What a rate limiter does while the store cannot be asked."""

from __future__ import annotations

from django_tasklock.backends.contract.rates import Rate, RateStore, Terms
from django_tasklock.backends.memory.rates import MemoryRates
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.rates import events
from django_tasklock.rates.options import Limit, OnOutage
from django_tasklock.types import monotonic

AGAIN = 1.0  # seconds during which a store that did not answer is not asked again, where one may go on without it


class Outage:
    """The store's absence, as one limiter of this process has met it.

    The policies ``open`` and ``local`` hold for the grace period after the first failure, then
    the limiter is closed. The period begins anew only after the store has answered for as long:
    neither later failures nor a store that comes and goes prolong it.
    """

    def __init__(self) -> None:
        self.local: RateStore = MemoryRates({})
        """The places of this process alone."""
        self._began: float | None = None
        self._healed: float | None = None
        self._error: BackendUnavailable | None = None
        self._until = 0.0

    def answered(self) -> None:
        """The store can be asked."""
        if self._began is not None and self._healed is None:
            self._healed = monotonic()
            self._error = None

    def standing(self) -> BackendUnavailable | None:
        """Why not to ask the store just now."""
        return self._error if self._error is not None and monotonic() < self._until else None

    def failed(self, name: str, limit: Limit, error: BackendUnavailable) -> OnOutage:
        """What to do without it. Raises the error where that is nothing."""
        now, grace = monotonic(), limit.grace / 1_000_000
        if self._began is None or (self._healed is not None and now - self._healed >= grace):
            self._began = now
        self._healed = None
        action = limit.on_unavailable
        if action == "open" and not error.down:  # it keeps count for others
            action = "closed"
        if action != "closed" and now - self._began > grace:
            action = "closed"
        events.unavailable(name, error, action)
        if action == "closed":
            self._error = None
            error.name = error.name or name
            raise error
        if error is not self._error:
            self._error, self._until = error, now + AGAIN
        return action


_outages: dict[str, Outage] = {}


def outage_of(name: str) -> Outage:
    """The one of this limiter, in this process. Not of its tenants: those share the limiter's."""
    found = _outages.get(name)
    return _outages.setdefault(name, Outage()) if found is None else found


def forget() -> None:
    """Forget every outage that this process has met."""
    _outages.clear()


def share_of(terms: Terms, workers: int) -> Terms:
    """What one of so many processes may do: a part of the limit, or all of it in longer windows."""
    rates = tuple(
        rate._replace(limit=rate.limit // workers)
        if rate.limit >= workers
        else Rate(1, -(-rate.window * workers // rate.limit), rate.margin)
        for rate in terms.rates
    )
    return terms._replace(rates=rates, burst=max(1, terms.burst // workers) if terms.burst else 0, cold_wait=False)
