"""What a store counts, together with the verb that did it: true over processes, those that were killed included.

A count has an *event* and a *kind*. The kind is what was meant by a name, ``video:{id}``, never the name itself: kinds
are few. An event that has a duration also says in which bucket of a histogram that falls, ``released:3``.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from django_tasklock.backends.contract.rates import TENANT, split_tenant
from django_tasklock.types import Holder

BOUNDS: Final = (5, 25, 100, 500, 1_000, 5_000, 15_000, 60_000, 300_000, 900_000, 3_600_000)
"""Upper bounds of the buckets of every histogram, in milliseconds; what is longer is in one more. The scripts have the
same."""
OTHERS: Final = "(others)"
"""The kind of what comes when there are too many kinds."""
LONGEST_KIND: Final = 100
"""Characters of a kind."""
MARK: Final = 9
"""Those of them that tell it apart, where it is cut."""
MOST_KINDS: Final = 200
"""Kinds that one process names, and a store tells apart."""
HOURS_KEPT: Final = 14 * 24
"""Hours whose counts are kept one by one."""
NOTED_FROM: Final = 1_000
"""Milliseconds that a hold must last to be among the last holds of its name, if it ended by a release."""
NAMES_KEPT: Final = 10_000
"""Names whose last holds are kept."""
HOLDS_KEPT_FOR: Final = 7 * 86_400_000
"""Milliseconds that the last holds of a name are kept after the last of them."""

ACQUIRED: Final = "acquired"
"""A lock was granted to who asked, at once."""
WAITED: Final = "waited"
"""A lock was granted to a waiter; with a bucket, and the time that it waited."""
RELEASED: Final = "released"
"""A lock was given back by its holder; with a bucket, and the time that it was held."""
EXPIRED: Final = "expired"
"""A lease had run out, and nobody gave the lock back: counted when somebody finds that out."""
DELETED: Final = "deleted"
"""What is kept of a lock went before its time: deleted by hand, or evicted."""
LOST: Final = "lost"
"""A holder learned that the lock is not its own any more, while it ran."""
FORCED: Final = "forced"
"""A lock was taken away from its holder: by an operator, a sweep, or who knows that its process is dead."""
TRANSFERRED: Final = "transferred"
"""A lock went from a hold to the one that follows it, without having been free: kept for the next try of a task."""
CONFLICT: Final = "conflict"
"""A lock was busy; with what was to be done then, ``conflict:skip``."""
TIMED_OUT: Final = "timeout"
"""What is done by who waited for as long as it wanted to."""
GRANTED: Final = "limit.granted"
"""A limiter let somebody go, at once."""
GRANTED_LATE: Final = "limit.waited"
"""A limiter let somebody go after a wait; with a bucket."""
REFUSED: Final = "limit.refused"
CANCELLED: Final = "limit.cancelled"
PUSHBACK: Final = "limit.pushback"
PERMIT_RELEASED: Final = "limit.released"
"""A permit was given back; with a bucket."""
PERMIT_EXPIRED: Final = "limit.expired"
PERMIT_FORCED: Final = "limit.forced"
PARKED: Final = "message.parked"
PROMOTED: Final = "message.promoted"
SUPERSEDED: Final = "message.superseded"
TAKEN_OVER: Final = "message.taken_over"
STALE: Final = "claim.stale"
"""A write of an overtaken claim was refused."""
LATE: Final = "worker.late"
"""A worker renewed what it has from the broker too late by more than half of its lease."""


class Count(NamedTuple):
    """How often something happened, and how long that took altogether, in milliseconds."""

    number: int = 0
    amount: int = 0

    def plus(self, other: Count) -> Count:
        """Return the two together."""
        return Count(self.number + other.number, self.amount + other.amount)


Counted = Mapping[tuple[str, str], Count]
"""Counts by event and kind."""


class Hour(NamedTuple):
    """What was counted within one hour, by the store's clock. ``at``: its beginning, seconds since 1970."""

    at: int
    counted: Counted


class HoldRecord(NamedTuple):
    """One hold of a lock that is over. Times are the store's, in milliseconds since 1970.

    ``ended_at`` of one that expired is the end of its lease. ``how``: ``released``, ``expired``, ``deleted``,
    ``forced``.
    """

    name: str
    kind: str
    holder: Holder
    at: int
    ended_at: int
    how: str


class Metrics(ABC):
    """What a store has counted. Raises ``BackendUnavailable``.

    Totals never go backwards, except that a store which loses its data begins at zero.
    """

    @abstractmethod
    def totals(self) -> Counted:
        """Return all that was counted since the store was empty."""

    @abstractmethod
    def hours(self, number: int) -> list[Hour]:
        """Return the last hours, the running one among them, in order of time; those in which nothing was counted are
        left out."""

    @abstractmethod
    def add(self, event: str, kind: str) -> None:
        """Count something that no verb of the store has done, by a request of its own: what is rare."""

    @abstractmethod
    def holds(self, name: str, limit: int) -> list[HoldRecord]:
        """Return the last holds of a name, the latest first."""


def bucket_of(amount: int) -> int:
    """Return the number of the bucket for so many milliseconds."""
    return bisect_left(BOUNDS, amount)


def in_bucket(event: str, amount: int) -> str:
    """Return the name of ``event`` when it took so many milliseconds."""
    return f"{event}:{bucket_of(amount)}"


@lru_cache(maxsize=1024)
def clean_kind(kind: str) -> str:
    """Return ``kind`` as stores keep it: at most 100 characters, none of which means anything in JSON or a script.

    One that is longer is cut, and ends in a hash of it, so that it is not taken for another.
    """
    kept = kind if len(kind) <= LONGEST_KIND else kind[: LONGEST_KIND - MARK] + mark_of(kind)
    text = "".join(char if char.isprintable() else " " for char in kept)
    return text.translate(_HARMLESS).strip()


def mark_of(kind: str) -> str:
    """Return the end of a kind of which only the beginning is kept."""
    return "~" + hashlib.sha256(kind.encode("utf-8", "surrogatepass")).hexdigest()[: MARK - 1]


_HARMLESS = str.maketrans({'"': "'", "\\": "/", "|": "/"})


def limiter_kind(name: str) -> str:
    """Return what a rate limiter is counted as: its name, all tenants of one as ``tavily:tenant``."""
    limiter, tenant = split_tenant(name)
    return clean_kind(limiter if tenant is None else limiter + TENANT.rstrip(":"))


def merged(*parts: Counted) -> dict[tuple[str, str], Count]:
    """Return the sums of these."""
    found: dict[tuple[str, str], Count] = {}
    for part in parts:
        for key, count in part.items():
            found[key] = found[key].plus(count) if key in found else count
    return found
