"""An estimate of the store's clock, so that a slow answer is not taken for a late caller.

The store reads its clock between request and answer, so each exchange bounds the difference of the clocks. The quickest
exchange of the last minute gives the best bound.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from django_tasklock.backends.contract.rates import Booked, RateStore

MAX_AGE = 60.0  # seconds for which a bound is used
DRIFT = 0.0002  # seconds by which two clocks may diverge in a second


class ServerClock:
    """An upper bound of one store's clock. Arguments are seconds on this process's monotonic clock."""

    def __init__(self) -> None:
        self._bound: tuple[float, float] | None = None

    def record(self, booked: Booked, sent: float, received: float) -> None:
        """Record an exchange."""
        read = (booked.time - booked.wait) / 1_000_000
        known = self._bound
        if known is not None:
            ahead, since = known
            ahead += (received - since) * DRIFT
            if read - received <= ahead <= read - sent and received - since < MAX_AGE:
                return
        self._bound = read - sent, received

    def upper_bound(self, now: float) -> float:
        """Return the upper bound of the store's clock at ``now``."""
        if self._bound is None:
            return float("inf")
        ahead, since = self._bound
        return now + ahead + max(0.0, now - since) * DRIFT


_clocks: WeakKeyDictionary[RateStore, ServerClock] = WeakKeyDictionary()


def clock_of(store: RateStore) -> ServerClock:
    """Return the estimate of a store's clock: all limiters of this process that use the store share it."""
    found = _clocks.get(store)
    return _clocks.setdefault(store, ServerClock()) if found is None else found


def forget() -> None:
    """Forget every exchange, in place: limiters refer to the clocks."""
    for clock in list(_clocks.values()):
        clock.__init__()  # type: ignore[misc]
