"""How often the lease of a message is renewed."""

from __future__ import annotations

RENEWALS = 4
"""Renewals in one lease, so that three may fail."""
SHORTEST = 1.0
"""Seconds between two renewals at the least: a message whose lease is shorter than three of them is not safe."""
LONGEST = 60 / RENEWALS
"""Seconds between two renewals at the most: a worker with a shorter lease may look after the same broker."""
FEWEST = 3
"""Renewals that a lease must be long enough for."""


def period_of(lease: float) -> float:
    """Return the seconds between two renewals of a lease of so many."""
    return max(SHORTEST, min(lease / RENEWALS, LONGEST))


def shortest_lease() -> float:
    """Return the shortest lease, in seconds, that is renewed often enough."""
    return FEWEST * SHORTEST
