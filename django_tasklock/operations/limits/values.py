"""What the doors show of limiters: frozen values, in seconds, without tokens."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.utils.translation import gettext_lazy as _

from django_tasklock.operations.values import Act
from django_tasklock.rates.usage import RateUsage
from django_tasklock.types import LockInfo


class LimitState(enum.StrEnum):
    """What a call to a rate limit meets now, in a word."""

    OPEN = "open"
    """A call that came now would go at once."""
    FULL = "full"
    """It would wait for its turn."""
    PAUSED = "paused"
    """Nobody goes: the other side asked for a pause."""
    IDLE = "idle"
    """Nothing is booked and its rates are not known here: none of its calls counts any more."""

    @property
    def label(self) -> Any:
        """The word in the language of whoever reads it."""
        return _LABELS[self]


_LABELS = {
    LimitState.OPEN: _("open"),
    LimitState.FULL: _("full"),
    LimitState.PAUSED: _("paused"),
    LimitState.IDLE: _("idle"),
}


@dataclass(frozen=True, slots=True)
class LimitView:
    """One rate limit in a list."""

    name: str
    """The name as ``RateLimiter.name`` has it; a tenant's has the limiter's before it."""
    limiter: str
    """The limiter whose tenant it is; of a limiter itself its own name."""
    tenant: str | None
    """The tenant. Empty: the default one; ``None``: it is no tenant's."""
    configured: bool
    """True if ``TASKLOCK["RATE_LIMITS"]`` has it."""
    algorithm: str
    rates: Sequence[str]
    """The rates as configured, or as its last caller had them; none where it is idle."""
    state: LimitState
    usage: RateUsage | None
    """Its use. ``None``: it is idle, nothing counts any more and its rates are not known."""
    waiting: int
    """Units whose turn is still to come."""
    tenants: int
    """The number of its tenants that were seen lately."""


@dataclass(frozen=True, slots=True)
class LimitPage:
    """A page of rate limits."""

    limits: Sequence[LimitView]
    total: int
    next: int | None
    """The offset to go on at; ``None``: there are no more."""


@dataclass(frozen=True, slots=True)
class PermitsView:
    """A concurrency limiter. Its limit is its callers'; a store knows that of whoever has a permit."""

    name: str
    limit: int | None
    """The greatest limit that its members have; ``None``: it is not known."""
    waiting: int
    """The number of those who wait in the store's queue; 0 where waiters poll."""
    members: Sequence[LockInfo]
    """Who has a permit, the one that has it longest first."""

    @property
    def used(self) -> int:
        """The number of permits that are taken."""
        return len(self.members)


@dataclass(frozen=True, slots=True)
class PermitsPage:
    """A page of concurrency limiters of which somebody has a permit."""

    limiters: Sequence[PermitsView]
    more: bool
    """True if there are more than are shown: ask for a part of their names."""


@dataclass(frozen=True, slots=True)
class LimitDetail:
    """One name, with all that is known of it."""

    name: str
    limit: LimitView | None
    """``None``: no rate limit of this name is known."""
    tenants: Sequence[LimitView]
    """The first of them, the one used last first; ``limit.tenants`` is how many there are."""
    permits: PermitsView | None
    """``None``: nobody has a permit of this name, or the store keeps none."""
    history: Sequence[Act]
    paused_by: Act | None = None
    """Who paused it from a page or a command; ``None``: nobody, or that is over."""


class LimitOutcome(enum.StrEnum):
    """The outcome of an act."""

    RESET = "reset"
    CHANGED = "changed"
    PAUSED = "paused"
    RESUMED = "resumed"
    RELEASED = "released"
    UNKNOWN = "unknown"
    """No such limiter is known: nothing was done."""
    NOT_HELD = "not_held"
    """No such member has a permit any more: nothing was to be done."""
    NOT_PAUSED = "not_paused"
    """It is not paused: nothing was to be done."""


class LimitResult(NamedTuple):
    """One act that was done, or not."""

    name: str
    outcome: LimitOutcome
    share: float | None = None
    """The share of the limit that is in force now."""
    before: float | None = None
    """The share of the limit that was in force until then."""
    member: LockInfo | None = None
    """Who lost its permit."""
    seconds: float = 0.0
    """For how long nobody goes now; of a limiter that goes on: for how long nobody would have gone."""

    def __bool__(self) -> bool:
        return self.outcome not in (LimitOutcome.UNKNOWN, LimitOutcome.NOT_HELD, LimitOutcome.NOT_PAUSED)
