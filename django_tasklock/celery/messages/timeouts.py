"""The renewal period of a message lease."""

from __future__ import annotations

RENEWALS = 4
"""Renewals in one lease, so that three may fail."""
SHORTEST = 1.0
"""The shortest period in seconds. A lease shorter than three of them is not safe."""
LONGEST = 60 / RENEWALS
"""The longest period in seconds, because a worker with a shorter lease may watch the same broker."""
FEWEST = 3
"""The fewest renewals that must fit into a lease."""


def period_of(lease: float) -> float:
    """Return the seconds between two renewals of a lease, which is in seconds as well."""
    return max(SHORTEST, min(lease / RENEWALS, LONGEST))


def shortest_lease() -> float:
    """Return the shortest lease, in seconds, that is renewed often enough."""
    return FEWEST * SHORTEST
