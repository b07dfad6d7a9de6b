"""What a rate limiter does while its store is down."""

from __future__ import annotations

from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.rates import events
from django_tasklock.rates.options import OutagePolicy
from django_tasklock.types import monotonic

RETRY_AFTER = 1.0  # seconds for which a store that did not answer is not asked again, where calls go on without it


class Outage:
    """An outage of the store, as one limiter of this process knows it. Its tenants share it."""

    def __init__(self) -> None:
        self._error: BackendUnavailable | None = None
        self._retry_at = 0.0

    def end(self) -> None:
        """Record that the store has answered."""
        self._error = None

    def check(self) -> None:
        """Raise the error of the last second: after it the store is not asked again yet."""
        if self._error is not None and monotonic() < self._retry_at:
            raise self._error.with_traceback(None)  # or it would grow with each call

    def apply(self, name: str, policy: OutagePolicy, error: BackendUnavailable) -> None:
        """Let the call go on without the store, or raise ``error``, by the limiter's policy.

        A store that is up but refuses, or has no room for this process, is still reached by other processes: there the
        limit applies.
        """
        goes_on = policy == "open" and error.down
        events.unavailable(name, error, "open" if goes_on else "closed")
        if not goes_on:
            error.name = error.name or name
            raise error
        if error is not self._error:
            self._error, self._retry_at = error, monotonic() + RETRY_AFTER


_outages: dict[str, Outage] = {}


def outage_of(name: str) -> Outage:
    """Return the ``Outage`` of a limiter in this process."""
    return _outages.setdefault(name, Outage())


def forget() -> None:
    """End every outage, in place: limiters refer to them."""
    for outage in _outages.values():
        outage.end()
