"""How far a store's clock can be ahead of this process's: so that a slow answer is not taken for a late caller.

Between question and answer the store has read its clock, so each exchange bounds the difference. The
quickest of the last minute bounds it best.
"""

from __future__ import annotations

import weakref

from django_tasklock.backends.contract.rates import Booked, RateStore

AGE = 60.0  # seconds for which a bound is believed
DRIFT = 0.0002  # seconds by which two clocks may part in one


class ServerClock:
    """An upper bound. Seconds; ``now`` and the like are times of this process's monotonic clock."""

    def __init__(self) -> None:
        self._bound: tuple[float, float] | None = None

    def heard(self, booked: Booked, sent: float, heard: float) -> None:
        """Note an exchange."""
        read = (booked.time - booked.wait) / 1_000_000
        known = self._bound
        if known is not None:
            ahead, since = known
            ahead += (heard - since) * DRIFT
            if read - heard <= ahead <= read - sent and heard - since < AGE:
                return
        self._bound = read - sent, heard

    def latest(self, now: float) -> float:
        """What the store's clock shows now, at the most."""
        if self._bound is None:
            return float("inf")
        ahead, since = self._bound
        return now + ahead + max(0.0, now - since) * DRIFT


_clocks: weakref.WeakKeyDictionary[RateStore, ServerClock] = weakref.WeakKeyDictionary()


def clock_of(store: RateStore) -> ServerClock:
    """The one of this store, in this process."""
    found = _clocks.get(store)
    return _clocks.setdefault(store, ServerClock()) if found is None else found


def forget() -> None:
    """Forget how far the clocks of stores are ahead."""
    _clocks.clear()
