"""What a rate limiter does while its store is down."""

from __future__ import annotations

from django_tasklock.backends.contract.rates import Rate, RateStore, Terms
from django_tasklock.backends.memory.rates import MemoryRates
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.rates import events
from django_tasklock.rates.options import LimitOptions, OutagePolicy
from django_tasklock.rates.server_clock import ServerClock
from django_tasklock.rates.stored import StoredLimit
from django_tasklock.types import monotonic

RETRY_AFTER = 1.0  # seconds for which a store that did not answer is not asked again, where calls go on without it


class Outage:
    """An outage of the store, as one limiter of this process knows it.

    The policies ``open`` and ``local`` hold for the grace period after the first failure; then the limiter is closed. A
    new period begins only after the store has answered for as long, so that neither later failures nor a store that
    comes and goes prolong it.
    """

    def __init__(self) -> None:
        self.ever_failed = False
        """Whether there was a failure. Until then no call needs to look at the outage."""
        self._began_at = 0.0
        self._recovered_at: float | None = None
        self._error: BackendUnavailable | None = None
        self._retry_at = 0.0
        self._local: tuple[RateStore, ServerClock] | None = None

    def local_limit(self, terms: Terms, workers: int) -> StoredLimit:
        """Return a limit in this process's memory with its share of ``terms``."""
        if self._local is None:
            self._local = MemoryRates({}), ServerClock()
        store, clock = self._local
        return StoredLimit(store, terms_per_process(terms, workers), clock)

    def record_answer(self) -> None:
        """Record that the store has answered."""
        if self.ever_failed and self._recovered_at is None:
            self._recovered_at = monotonic()
            self._error = None

    def recent_error(self) -> BackendUnavailable | None:
        """Return the error of the last second, after which the store is not asked again yet; ``None``: ask it."""
        return self._error if self._error is not None and monotonic() < self._retry_at else None

    def choose_action(self, name: str, limit: LimitOptions, error: BackendUnavailable) -> OutagePolicy:
        """Return the action for a failure, by the limiter's policy. Raises ``error`` where that is ``closed``."""
        now, grace = monotonic(), limit.grace / 1_000_000
        if not self.ever_failed or (self._recovered_at is not None and now - self._recovered_at >= grace):
            self._began_at = now
        self.ever_failed = True
        self._recovered_at = None
        action = limit.on_unavailable
        if action == "open" and not error.down:  # other processes may still reach it, so the limit applies
            action = "closed"
        if action != "closed" and now - self._began_at > grace:
            action = "closed"
        events.unavailable(name, error, action)
        if action == "closed":
            self._error = None
            error.name = error.name or name
            raise error
        if error is not self._error:
            self._error, self._retry_at = error, now + RETRY_AFTER
        return action


_outages: dict[str, Outage] = {}


def outage_of(name: str) -> Outage:
    """Return the ``Outage`` of a limiter in this process. Its tenants share it."""
    found = _outages.get(name)
    return _outages.setdefault(name, Outage()) if found is None else found


def forget() -> None:
    """Reset every outage of this process, in place: limiters refer to them."""
    for outage in _outages.values():
        outage.__init__()  # type: ignore[misc]


def terms_per_process(terms: Terms, workers: int) -> Terms:
    """Return the terms of one of ``workers`` processes: a part of the limit, or one call in a longer window."""
    rates = tuple(
        rate._replace(limit=rate.limit // workers)
        if rate.limit >= workers
        else Rate(1, -(-rate.window * workers // rate.limit), rate.margin)
        for rate in terms.rates
    )
    return terms._replace(rates=rates, burst=max(1, terms.burst // workers) if terms.burst else 0, cold_wait=False)
