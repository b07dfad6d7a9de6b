"""How a rate limiter stands, for people."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from django_tasklock.backends.contract.rates import Terms, Use


@dataclass(frozen=True, slots=True)
class WindowUsage:
    """The use of one rate of a limiter."""

    rate: str
    """The rate as configured."""
    window: float
    """Seconds."""
    limit: int
    """In force now: the configured one, unless it was adapted."""
    used: int
    """Units in the window that ends now: what ``ZCARD`` of a sorted set would say."""
    ahead: int
    """Units booked for later."""


@dataclass(frozen=True, slots=True)
class RateUsage:
    """How far a limiter is used. Seconds from ``time`` on, which is the store's clock."""

    name: str
    time: datetime
    """The store's clock."""
    windows: tuple[WindowUsage, ...]
    next: float
    """The wait of a call that came now."""
    tail: float
    """The time until the last reservation."""
    paused: float
    """For how long nobody goes, after a pushback."""
    share: float
    """Of the configured limit that is in force: 1.0 unless it was adapted."""
    free: int
    """Reservations given back that nobody has taken yet."""
    refused: int
    """Calls refused since the limiter was made or reset."""

    @property
    def used(self) -> int:
        """Units used in the first of its windows."""
        return self.windows[0].used


def usage_of(terms: Terms, use: Use) -> RateUsage:
    """Return what the store said, in seconds."""
    still = _still(terms, use)
    windows = []
    for rate, told in zip(terms.rates, use.rates, strict=True):
        gone = max(0, told.ahead - still) if rate.cell > 1 else 0
        window = rate.window / 1_000_000
        windows.append(WindowUsage(str(rate), window, told.limit, told.used + gone, told.ahead - gone))
    return RateUsage(
        name=terms.name,
        time=datetime.fromtimestamp(use.time / 1_000_000, UTC),
        windows=tuple(windows),
        next=use.next / 1_000_000,
        tail=use.tail / 1_000_000,
        paused=use.paused / 1_000_000,
        share=use.share / 1_000_000,
        free=use.free,
        refused=use.refused,
    )


def _still(terms: Terms, use: Use) -> int:
    """Return the units whose turn is to come, at most.

    A rate with cells counts those of the current cell, which are gone, too.
    """
    if use.tail <= use.paused:
        return 0
    return min(told.ahead for told in use.rates)
