"""Locks as the admin, REST and the commands show them: frozen values, in seconds, without tokens."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from django.utils.translation import gettext_lazy as _

from django_tasklock.operations.datetimes import format_datetime
from django_tasklock.texts import printable
from django_tasklock.types import LockInfo

if TYPE_CHECKING:
    from django_tasklock.celery import ParkedInfo


class LockState(enum.StrEnum):
    """The state of a lock's lease."""

    LIVE = "live"
    EXPIRING = "expiring"
    """Live; ends within ten seconds unless renewed (within a sixth of ``LEASE`` if that is shorter)."""
    NO_EXPIRY = "no_expiry"
    """The key has no TTL: only a release ends it."""
    ORPHANED = "orphaned"
    """The lease ended without a release: the lock is free, but its index entry still exists."""

    @property
    def label(self) -> Any:
        """The state in the active language."""
        return _LABELS[self]


_LABELS = {
    LockState.LIVE: _("live"),
    LockState.EXPIRING: _("expiring"),
    LockState.NO_EXPIRY: _("no expiry"),
    LockState.ORPHANED: _("orphaned"),
}


DEAD: Final = "dead"
"""What the admin, REST and the commands call live locks whose holder's process has ended: ``list_locks(dead=True)``."""


class LockCounts(NamedTuple):
    """The number of locks in each state; ``live`` includes all others but ``orphaned``."""

    live: int
    expiring: int
    no_expiry: int
    orphaned: int
    dead: int


class RowRef(NamedTuple):
    """A guarded row: ``videos.video`` and its key as text."""

    model: str
    pk: str
    """The primary key, or the value of the field ``lookup``."""
    lookup: str = "pk"

    def __str__(self) -> str:
        return printable(f"{self.model}{'' if self.lookup == 'pk' else '.' + self.lookup}:{self.pk}")


@dataclass(frozen=True, slots=True)
class LockView:
    """One lock in a list."""

    info: LockInfo
    """Name, holder, fingerprint, ``held_for``, ``ttl`` (until the lease ends), ``time_left`` (until the timeout)..."""
    state: LockState
    lapsed_for: float | None
    """Seconds since the lease ended, if the lock is orphaned."""
    asked_for: float | None
    """Seconds since a release was requested from the holder; ``None``: it was not."""
    row: RowRef | None
    parked: int
    """The number of messages parked behind the lock."""
    alive: bool | None
    """Whether the holder's process runs; ``None``: unknown, as on another machine or without a holder."""
    instances: int = 0
    """How many of several independent stores hold the key; 0: there is one store."""

    @property
    def dead(self) -> bool:
        """Whether the holder's process has ended, so that it neither renews the lock nor answers a release request."""
        return self.alive is False and self.state is not LockState.ORPHANED


@dataclass(frozen=True, slots=True)
class LockPage:
    """A page of locks."""

    locks: Sequence[LockView]
    total: int
    """The number of locks that match."""
    next: int | None
    """The offset of the next page; ``None``: this is the last one."""
    more: bool = False
    """Whether there are more: only the ten thousand that expire first were read."""


@dataclass(frozen=True, slots=True)
class RowSide:
    """The guarded row of a lock."""

    ref: RowRef
    exists: bool
    field: str | None
    """The name of the state column; empty if the row's guard has none, ``None`` if no guard is known here."""
    state: Any
    fingerprint: str
    """The fingerprint of the token in the row; empty if the row is not claimed or its model has no token."""
    epoch: int | None
    fenced: bool
    """Whether the model has the columns token and epoch."""
    agrees: bool
    """Whether the row is claimed by the holder of the lock."""
    states: Sequence[Any]
    """The states that a release may leave the row in; the first is the guard's default."""


class Act(NamedTuple):
    """An action of an operator, an API key or the sweep on a lock or a limiter."""

    at: datetime
    actor: str
    action: str
    reason: str
    outcome: str
    name: str
    """The name of the lock or limiter; non-ASCII characters are escaped if the column is too short for all of it."""
    number: int = 0
    """The number of the entry in the audit trail, which increases."""

    def __str__(self) -> str:
        """Return the entry on one line, with its time in the active time zone."""
        why = f" ({printable(self.reason, 1000)})" if self.reason else ""
        texts = ": ".join(map(printable, (self.actor, self.action, self.outcome)))
        return f"{format_datetime(self.at)} {texts}{why}"


@dataclass(frozen=True, slots=True)
class LockDetail:
    """All that is known about one name, held or not."""

    name: str
    lock: LockView | None
    """``None``: the lock is free."""
    explanation: Sequence[str]
    """Why the lock is in this state: sentences in the active language."""
    row: RowSide | None
    parked: Sequence[ParkedInfo]
    history: Sequence[Act]


@dataclass(frozen=True, slots=True)
class Actor:
    """The author of an action. ``name``: for the audit trail, e.g. ``key grafana``; ``user_id``: if it is a user."""

    name: str
    user_id: Any = None


class Outcome(enum.StrEnum):
    """The outcome of an action."""

    RELEASED = "released"
    ASKED = "asked"
    CHANGED_HANDS = "changed_hands"
    """The lock has another holder than the one shown: nothing was done."""
    NOT_HELD = "not_held"
    """The lock is free: there was nothing to do."""


class Result(NamedTuple):
    """The result of an action on a lock. It is true if something was done; its text is a sentence."""

    name: str
    outcome: Outcome
    before: LockInfo | None = None
    """The holder before the action."""
    fenced: bool = False
    """Whether the holder's claim on the guarded row was revoked as well."""
    alive: bool | None = None
    """Whether the process of that holder runs; ``None``: unknown."""

    def __bool__(self) -> bool:
        return self.outcome in (Outcome.RELEASED, Outcome.ASKED)

    def __str__(self) -> str:
        """Return what was done, in the active language."""
        if self.fenced and not self:  # the claim was revoked, but the lock was gone by then
            return _LOST_MEANWHILE % {"name": self.name}
        sentences = [_SENTENCES[self.outcome] % {"name": self.name}]
        if self.fenced:
            sentences.append(str(_ROW_TAKEN))
        if self.outcome is Outcome.RELEASED:
            sentences.append(str(_ENDED if self.alive is False else _RUNS_ON))
        return " ".join(sentences)


_SENTENCES = {
    Outcome.RELEASED: _("The lock “%(name)s” was released."),
    Outcome.ASKED: _("The holder of “%(name)s” was asked to give it back. It sees that at its next heartbeat."),
    Outcome.CHANGED_HANDS: _("Nothing was done: “%(name)s” changed hands. Look at who holds it now."),
    Outcome.NOT_HELD: _("Nothing was done: “%(name)s” is free already."),
}
_LOST_MEANWHILE = _(
    "The row of “%(name)s” was taken from the old holder, which had lost the lock meanwhile. No lock was released."
)
_ROW_TAKEN = _("Its row was taken from the old holder, whose writes to it are refused now.")
_ENDED = _("Its process has ended.")
_RUNS_ON = _("Its holder goes on running.")
