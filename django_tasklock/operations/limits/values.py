"""Limiters as the admin, REST and the commands show them: frozen values, in seconds, without tokens."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.utils.translation import gettext_lazy as _

from django_tasklock.operations.durations import format_duration
from django_tasklock.operations.values import Act
from django_tasklock.rates.usage import RateUsage
from django_tasklock.types import LockInfo


class LimitState(enum.StrEnum):
    """The present state of a rate limit."""

    OPEN = "open"
    """A call would be let through at once."""
    FULL = "full"
    """A call would have to wait."""
    PAUSED = "paused"
    """No call is let through: the remote side or an operator has paused it."""
    IDLE = "idle"
    """Nothing is booked and the rates are unknown here: no past call counts any more."""

    @property
    def label(self) -> Any:
        """The state in the active language."""
        return _LABELS[self]


_LABELS = {
    LimitState.OPEN: _("open"),
    LimitState.FULL: _("full"),
    LimitState.PAUSED: _("paused"),
    LimitState.IDLE: _("idle"),
}


@dataclass(frozen=True, slots=True)
class LimitView:
    """A rate limit in a list."""

    name: str
    """The name as in ``RateLimiter.name``; that of a tenant begins with the limiter's."""
    limiter: str
    """The limiter to which the tenant belongs; for a limiter itself, its own name."""
    tenant: str | None
    """The tenant; empty: the default tenant; ``None``: a limiter without tenant."""
    configured: bool
    """True if it is in ``TASKLOCK["RATE_LIMITS"]``."""
    rates: Sequence[str]
    """The configured rates, or those of the last caller; empty if idle."""
    state: LimitState
    usage: RateUsage | None
    """The present usage; ``None`` if idle."""
    waiting: int
    """Units that still wait for their turn."""
    tenants: int
    """The number of tenants seen lately."""


@dataclass(frozen=True, slots=True)
class LimitPage:
    """A page of rate limits."""

    limits: Sequence[LimitView]
    total: int
    next: int | None
    """The offset of the next page; ``None``: this is the last one."""


@dataclass(frozen=True, slots=True)
class PermitsView:
    """A concurrency limiter. The limit is an argument of its callers; the store has it only for taken permits."""

    name: str
    limit: int | None
    """The greatest limit among the members; ``None``: unknown."""
    waiting: int
    """The number of waiters in the store's queue; 0 if waiters poll."""
    members: Sequence[LockInfo]
    """The members, the longest holding first."""

    @property
    def used(self) -> int:
        """The number of taken permits."""
        return len(self.members)


@dataclass(frozen=True, slots=True)
class PermitsPage:
    """A page of concurrency limiters of which a permit is taken."""

    limiters: Sequence[PermitsView]
    more: bool
    """True if there are more limiters than listed: narrow by part of the name."""


@dataclass(frozen=True, slots=True)
class LimitDetail:
    """All that is known about one name."""

    name: str
    limit: LimitView | None
    """``None``: there is no known rate limit of this name."""
    tenants: Sequence[LimitView]
    """The first tenants, the last used first; ``limit.tenants`` is their number."""
    permits: PermitsView | None
    """``None``: no permit of this name is taken, or the store has no permits."""
    history: Sequence[Act]
    paused_by: Act | None = None
    """The operator's action that paused it; ``None`` if there is none or it is over."""


class LimitOutcome(enum.StrEnum):
    """The outcome of an action on a limiter."""

    RESET = "reset"
    CHANGED = "changed"
    PAUSED = "paused"
    RESUMED = "resumed"
    RELEASED = "released"
    UNKNOWN = "unknown"
    """There is no known limiter of this name: nothing was done."""
    NOT_HELD = "not_held"
    """The member has no permit any more: there was nothing to do."""
    NOT_PAUSED = "not_paused"
    """The limiter is not paused: there was nothing to do."""


class LimitResult(NamedTuple):
    """The result of an action on a limiter. It is true if something was done; its text is a sentence."""

    name: str
    outcome: LimitOutcome
    share: float | None = None
    """The share of the limit in force now."""
    before: float | None = None
    """The share of the limit in force before."""
    member: LockInfo | None = None
    """The member whose permit was released."""
    seconds: float = 0.0
    """The length of the new pause; after a resume, what remained of the old one."""

    def __bool__(self) -> bool:
        return self.outcome not in (LimitOutcome.UNKNOWN, LimitOutcome.NOT_HELD, LimitOutcome.NOT_PAUSED)

    def __str__(self) -> str:
        """Return what was done, in the active language."""
        share, span = f"{(self.share or 0) * 100:.4g} %", format_duration(self.seconds)
        return str(_SENTENCES[self.outcome] % {"name": self.name, "share": share, "span": span})


_SENTENCES: Mapping[LimitOutcome, Any] = {
    LimitOutcome.RESET: _("The rate limit “%(name)s” was reset. Waiting callers book again."),
    LimitOutcome.CHANGED: _("%(share)s of the rate limit “%(name)s” is in force now."),
    LimitOutcome.PAUSED: _("The rate limit “%(name)s” is paused: no call starts for %(span)s."),
    LimitOutcome.RESUMED: _(
        "The rate limit “%(name)s” is not paused any more. Waiting callers notice this within some seconds."
    ),
    LimitOutcome.RELEASED: _("The permit of “%(name)s” was released. Its member notices this at its next heartbeat."),
    LimitOutcome.UNKNOWN: _("Nothing was done: no rate limit “%(name)s” is known."),
    LimitOutcome.NOT_HELD: _("Nothing was done: that member of “%(name)s” has no permit any more."),
    LimitOutcome.NOT_PAUSED: _("Nothing was done: the rate limit “%(name)s” is not paused."),
}
