"""How far a store's clock can be ahead of this process's: so that a slow answer is not taken for a late caller.

Between question and answer the store has read its clock, so each exchange bounds the difference. The
quickest of the last minute bounds it best.
"""

from __future__ import annotations

from django_tasklock.backends.contract.rates import Booked

AGE = 60.0  # seconds for which a bound is believed
DRIFT = 0.0002  # seconds by which two clocks may part in one


class ServerClock:
    """An upper bound of one store's clock. Seconds; ``now`` and the like are of this process's monotonic clock."""

    def __init__(self) -> None:
        self._bound: tuple[float, float] | None = None

    def hear(self, booked: Booked, sent: float, heard: float) -> None:
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
        """Return what the store's clock shows now, at the most."""
        if self._bound is None:
            return float("inf")
        ahead, since = self._bound
        return now + ahead + max(0.0, now - since) * DRIFT

    def forget(self) -> None:
        """Forget every exchange."""
        self._bound = None
