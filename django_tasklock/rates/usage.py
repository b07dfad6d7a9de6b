"""The usage of a rate limiter, for people."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from django_tasklock.backends.contract.rates import Terms, Usage


@dataclass(frozen=True, slots=True)
class WindowUsage:
    """The usage of one rate of a limiter."""

    rate: str
    """The rate as configured."""
    window: float
    """The length in seconds."""
    limit: int
    """The limit that applies now: the configured one, unless it was adapted."""
    used: int
    """The units used in the window that ends now."""
    ahead: int
    """The units booked for later."""


@dataclass(frozen=True, slots=True)
class RateUsage:
    """The usage of a limiter. Durations are seconds from ``time`` on."""

    name: str
    time: datetime
    """The store's clock."""
    windows: tuple[WindowUsage, ...]
    next: float
    """The wait of a call that comes now."""
    tail: float
    """The time until the last reservation."""
    paused: float
    """The rest of a pause."""
    share: float
    """The share of the configured limit that applies: 1.0 unless it was adapted."""
    free: int
    """The number of returned slots that are free."""
    refused: int
    """The number of calls that were refused since the limiter was made or reset."""

    @property
    def used(self) -> int:
        """The units used in the first of its windows."""
        return self.windows[0].used


def usage_of(terms: Terms, use: Usage) -> RateUsage:
    """Return the store's answer as a ``RateUsage``."""
    windows = (
        WindowUsage(str(rate), rate.window / 1_000_000, *units)
        for rate, units in zip(terms.rates, use.rates, strict=True)
    )
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
