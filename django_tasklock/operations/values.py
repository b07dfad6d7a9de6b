"""What the doors show of locks: frozen values, in seconds, without tokens."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from django.utils.translation import gettext_lazy as _

from django_tasklock.texts import printable
from django_tasklock.types import LockInfo

if TYPE_CHECKING:
    from django_tasklock.celery import ParkedInfo


class LockState(enum.StrEnum):
    """What is left of a lock's lease."""

    LIVE = "live"
    EXPIRING = "expiring"
    """Live, and over within ten seconds unless it is renewed; within a sixth of ``LEASE``, where that is less."""
    NO_EXPIRY = "no_expiry"
    """Without expiry: nothing but a release ends it."""
    ORPHANED = "orphaned"
    """Its holder let the lease end: the lock is free, and what it left behind is still known."""

    @property
    def label(self) -> Any:
        """In the language of whoever reads it."""
        return _LABELS[self]


_LABELS = {
    LockState.LIVE: _("live"),
    LockState.EXPIRING: _("expiring"),
    LockState.NO_EXPIRY: _("no expiry"),
    LockState.ORPHANED: _("orphaned"),
}


class RowRef(NamedTuple):
    """A guarded row: ``videos.video`` and its primary key as text."""

    model: str
    pk: str

    def __str__(self) -> str:
        return printable(f"{self.model}:{self.pk}")


@dataclass(frozen=True, slots=True)
class LockView:
    """One lock in a list."""

    info: LockInfo
    """Name, holder, fingerprint, ``held_for``, ``ttl`` (until the lease ends), ``time_left`` (until the timeout)..."""
    state: LockState
    lapsed_for: float | None
    """Seconds since its lease ended, where it is orphaned."""
    asked_for: float | None
    """Seconds since its holder was asked to give it back; ``None``: it was not."""
    row: RowRef | None
    parked: int
    """Messages that wait for it in the database."""
    alive: bool | None
    """Whether the holder's process runs; ``None``: that cannot be known from the machine that is asked."""
    instances: int = 0
    """How many of several independent stores have it; 0: there is one store."""

    @property
    def dead(self) -> bool:
        """Whether it is held by a process that has ended: nobody renews it, and nobody can be asked."""
        return self.alive is False and self.state is not LockState.ORPHANED


@dataclass(frozen=True, slots=True)
class LockPage:
    """A page of a list."""

    locks: Sequence[LockView]
    total: int
    """How many are in that state, before any other filter."""
    next: int | None
    """The offset to go on at; ``None``: there are no more."""
    ordered: int | None = None
    """How many at a time are in order, of more: those whose leases end first, then the next; ``None``: all."""


@dataclass(frozen=True, slots=True)
class RowSide:
    """The guarded row, beside the lock."""

    ref: RowRef
    exists: bool
    field: str
    """The name of its state column; empty where no guard of it is known here."""
    state: Any
    fingerprint: str
    """Of the token in the row; empty where nobody has claimed it, or its model has no token."""
    epoch: int | None
    fenced: bool
    """Whether its model has token and epoch."""
    agrees: bool
    """Whether it is claimed by the holder of the lock."""
    states: Sequence[Any]
    """What a release may leave it in; the first is the guard's own choice."""


class Act(NamedTuple):
    """Something an operator, a key or the sweep did to a lock or a limiter."""

    at: datetime
    actor: str
    action: str
    reason: str
    outcome: str
    name: str
    """Of the lock or limiter; characters that are not ASCII are escaped."""
    number: int = 0
    """Of the entry in the audit trail: later ones have greater numbers."""


@dataclass(frozen=True, slots=True)
class LockDetail:
    """Everything that is known of one name, held or not."""

    name: str
    lock: LockView | None
    """``None``: free."""
    explanation: Sequence[str]
    """Why it is in this state, in sentences, in the language of whoever reads them."""
    row: RowSide | None
    parked: Sequence[ParkedInfo]
    history: Sequence[Act]


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts. ``name``: what the audit trail says, ``key grafana`` say; ``user_id``: where it is a user."""

    name: str
    user_id: Any = None


class Outcome(enum.StrEnum):
    """What came of an act."""

    RELEASED = "released"
    ASKED = "asked"
    CHANGED_HANDS = "changed_hands"
    """Somebody else has the lock than was shown: nothing was done."""
    NOT_HELD = "not_held"
    """Nobody has the lock: nothing was to be done."""


class Result(NamedTuple):
    """What was done."""

    name: str
    outcome: Outcome
    before: LockInfo | None = None
    """Who had the lock."""
    fenced: bool = False
    """Whether the guarded row was taken from its holder as well."""

    def __bool__(self) -> bool:
        return self.outcome in (Outcome.RELEASED, Outcome.ASKED)
