"""The values that travel between the layers. Frozen; the standard library only.

Inside the storage layer durations are whole milliseconds; people are shown seconds.
"""

from __future__ import annotations

import enum
import hashlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple

__all__ = [
    "EXPIRING",
    "Ask",
    "Busy",
    "Counts",
    "Grant",
    "Holder",
    "Kept",
    "LockInfo",
    "Order",
    "Page",
    "Pruned",
    "Query",
    "Record",
    "Refusal",
    "Released",
    "Renewal",
    "Which",
    "fingerprint",
    "monotonic",
]

if hasattr(time, "CLOCK_BOOTTIME"):

    def monotonic() -> float:
        """Seconds on a clock that never jumps and, unlike ``time.monotonic``, counts suspended time."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:  # pragma: no cover - not Linux
    monotonic = time.monotonic


def fingerprint(token: str) -> str:
    """What people are shown in place of ``token``: enough to compare, too little to release with."""
    return hashlib.sha256(token.encode()).hexdigest()[:12] if token else ""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lock, for people: never a proof of anything."""

    host: str = ""
    pid: int = 0
    boot: str = ""
    task: str = ""
    task_id: str = ""
    retries: int = 0
    """Which try of that task: Celery counts retries, not redeliveries."""
    proc: str = ""
    """Machine and start time of the process: what ``holders.alive`` compares. Empty where they are not known."""
    row: str = ""
    """The guarded row that is worked on, ``videos.video:42``; empty where there is none."""
    kept: bool = False
    """Held for a message that is on its way: the end of the process says nothing."""

    def __str__(self) -> str:
        where = f"{self.host}:{self.pid}" if self.host else "unknown"
        return f"{where} ({self.task}[{self.task_id}])" if self.task else where


class Ask(NamedTuple):
    """One request for a lock: what a backend must know to grant it.

    ``ttl`` is how long the key lives unless renewed, ``hold`` the most the holder
    may have it, both in milliseconds. ``holder`` is a JSON object.
    """

    name: str
    token: str
    ttl: int
    hold: int
    holder: str = "{}"
    instead: str = ""
    """The token of an earlier hold that this one follows: granted over it, once. Not for a waiter."""


class Grant(NamedTuple):
    """The lock is yours for ``ttl`` milliseconds. A ``ttl`` below the one asked for is a
    *short claim*, made by whoever passed the lock on; the first renewal makes it whole."""

    fence: int
    ttl: int


class Busy(NamedTuple):
    """Somebody else has the lock. ``record`` is ``None`` if that could not be read."""

    record: Record | None
    remaining: int | None = None
    """Milliseconds until the key expires; ``None``: it never does."""


class Renewal(NamedTuple):
    """One lock of a batch to renew: ``ttl`` milliseconds from now, if ``token`` still holds it."""

    name: str
    token: str
    ttl: int


class Kept(enum.Enum):
    """What a renewal found. False only for ``LOST``."""

    RENEWED = "renewed"
    ASKED = "asked"
    """Renewed; and somebody asks the holder to give the lock back."""
    LOST = "lost"

    def __bool__(self) -> bool:
        return self is not Kept.LOST


class Released(enum.Enum):
    """What a release found. True only for ``RELEASED``."""

    RELEASED = "released"
    NOT_YOURS = "not_yours"
    """Somebody else has the lock: the lease had ended."""
    GONE = "gone"
    """Nobody has the lock: the lease had ended, or it was released by force."""
    UNKNOWN = "unknown"
    """The store could not be asked. Backends raise instead; only ``TaskLock`` answers this."""

    def __bool__(self) -> bool:
        return self is Released.RELEASED


@dataclass(frozen=True, slots=True)
class Record:
    """A held lock as the store knows it. Times are the store's, in milliseconds since 1970."""

    name: str
    token: str
    holder: Holder
    at: int
    until: int
    now: int
    fence: int
    ttl: int | None
    """Milliseconds the key has left; ``None``: no expiry; not positive: expired, not yet removed."""
    waiting: int = 0
    asked: int = 0
    """When somebody asked its holder to give it back; 0: nobody has."""


Which = Literal["live", "expiring", "unending", "lapsed"]
"""Locks by what is left of their leases: ``live`` (the next two included), ``expiring`` (within ten seconds, unless
renewed), ``unending`` (no expiry), ``lapsed`` (the holder let it end: free, and still in the index)."""
Order = Literal["expiry", "age", "left"]
"""By what is left of the lease, by how long it is held, by what is left of the timeout."""


EXPIRING = 10_000
"""Milliseconds left of its lease below which a lock is called expiring."""


class Query(NamedTuple):
    """Which locks to list, and in which order: live ones in any, the others by expiry.

    ``text`` (in the name, in either case of ASCII letters), ``task`` (its whole name), ``row`` (``Holder.row``) and
    ``waiting`` (somebody waits for it) are looked for from ``offset`` on, in a limited number of locks:
    ``Page.next`` says where to go on.
    """

    which: Which = "live"
    order: Order = "expiry"
    descending: bool = False
    text: str = ""
    task: str = ""
    row: str = ""
    waiting: bool = False
    offset: int = 0
    limit: int = 100


class Page(NamedTuple):
    """Some locks. ``total``: how many there are of that kind, before what is looked for.
    ``next``: the offset at which to go on; ``None``: there are no more."""

    records: list[Record]
    total: int
    next: int | None


class Counts(NamedTuple):
    """How many locks there are of each kind: ``expiring`` and ``unending`` ones are live ones as well."""

    live: int
    expiring: int
    unending: int
    lapsed: int


class Pruned(NamedTuple):
    """What was forgotten of what had lapsed. ``kept``: what was looked at and stays, to be left out next time."""

    removed: int
    kept: int


class Refusal(NamedTuple):
    """Somebody who found the lock busy: who, and when by the store's clock (ms since 1970)."""

    holder: Holder
    at: int


@dataclass(frozen=True, slots=True)
class LockInfo(Mapping[str, Any]):
    """A held lock, for people. Seconds; times are the store's clock. The token is never shown.

    Also a mapping, ``info["ttl"]``, of plain values: ``json.dumps(dict(info))`` works, and gives
    ``acquired_at`` as ISO 8601 text.
    """

    name: str
    holder: str
    fingerprint: str
    acquired_at: datetime
    held_for: float
    ttl: float | None
    """Seconds until the key expires unless its holder renews it; ``None``: never."""
    time_left: float
    """Seconds until the holder has had it for its whole timeout."""
    fence: int
    waiting: int
    task: str
    task_id: str

    def __getitem__(self, key: str) -> Any:
        if key not in self.__dataclass_fields__:
            raise KeyError(key)
        value = getattr(self, key)
        return value.isoformat() if isinstance(value, datetime) else value

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dataclass_fields__)

    def __len__(self) -> int:
        return len(self.__dataclass_fields__)
