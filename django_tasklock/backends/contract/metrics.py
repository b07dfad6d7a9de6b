"""The counts of a store. Each is incremented in the operation it counts, so processes that were killed are included.

A count has an *event* and a *kind*. The kind is the pattern of a name, ``video:{id}``, never the name itself: kinds
are few. An event with a duration also has the number of a histogram bucket, ``released:3``.
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
"""Upper bounds of the buckets of every histogram, in milliseconds; longer durations are in one more bucket. The Lua
scripts have the same list."""
OTHERS: Final = "(others)"
"""The kind under which events are counted once there are too many kinds."""
LONGEST_KIND: Final = 100
"""The maximum length of a kind, in characters."""
MARK: Final = 9
"""How many of those characters are a hash, in a kind that was truncated."""
MOST_KINDS: Final = 200
"""The most kinds that one process sends, and that a store counts separately."""
HOURS_KEPT: Final = 14 * 24
"""For how many hours the counts of each single hour are kept."""
NOTED_FROM: Final = 1_000
"""Milliseconds that a hold must last to be recorded in the history of its name, if it ended by a release."""
NAMES_KEPT: Final = 10_000
"""How many names have a history of holds."""
HOLDS_KEPT_FOR: Final = 7 * 86_400_000
"""Milliseconds that the history of a name is kept after its latest hold."""

ACQUIRED: Final = "acquired"
"""A lock was granted without waiting."""
WAITED: Final = "waited"
"""A lock was granted to a waiter; with a bucket and the time waited."""
RELEASED: Final = "released"
"""A lock was released by its holder; with a bucket and the time held."""
EXPIRED: Final = "expired"
"""A lease ran out without a release: counted when that is detected."""
DELETED: Final = "deleted"
"""The stored lock disappeared before its lease ended: deleted by hand, or evicted."""
LOST: Final = "lost"
"""A running holder learned that it does not hold the lock any more."""
FORCED: Final = "forced"
"""A lock was taken from its holder by an operator, by a sweep, or by a worker that saw the holder's process die."""
TRANSFERRED: Final = "transferred"
"""A lock passed from one hold to the next without having been free: it was kept for the next retry of a task."""
CONFLICT: Final = "conflict"
"""A lock was busy; with the ``on_conflict`` that was applied, ``conflict:skip``."""
TIMED_OUT: Final = "timeout"
"""The ``conflict`` suffix of a waiter that gave up after its wait timeout."""
GRANTED: Final = "limit.granted"
"""A limiter let a call through without waiting."""
GRANTED_LATE: Final = "limit.waited"
"""A limiter let a call through after a wait; with a bucket."""
REFUSED: Final = "limit.refused"
CANCELLED: Final = "limit.cancelled"
PUSHBACK: Final = "limit.pushback"
PERMIT_RELEASED: Final = "limit.released"
"""A permit was released; with a bucket."""
PERMIT_EXPIRED: Final = "limit.expired"
PERMIT_FORCED: Final = "limit.forced"
PARKED: Final = "message.parked"
PROMOTED: Final = "message.promoted"
SUPERSEDED: Final = "message.superseded"
TAKEN_OVER: Final = "message.taken_over"
STALE: Final = "claim.stale"
"""A write of a claim that has been overtaken was refused."""
LATE: Final = "worker.late"
"""A worker renewed its deliveries at the broker too late, by more than half of their lease."""


class Count(NamedTuple):
    """How often an event happened, and the sum of its durations in milliseconds."""

    number: int = 0
    amount: int = 0

    def plus(self, other: Count) -> Count:
        """Return the sum of the two."""
        return Count(self.number + other.number, self.amount + other.amount)


Counted = Mapping[tuple[str, str], Count]
"""Counts by event and kind."""


class Hour(NamedTuple):
    """The counts of one hour of the store's clock. ``at``: its beginning, in seconds since 1970."""

    at: int
    counted: Counted


class HoldRecord(NamedTuple):
    """A past hold of a lock. Times are the store's, in milliseconds since 1970.

    ``ended_at`` of an expired hold is the end of its lease. ``how``: ``released``, ``expired``, ``deleted``, or
    ``forced``.
    """

    name: str
    kind: str
    holder: Holder
    at: int
    ended_at: int
    how: str


class Metrics(ABC):
    """The counts of a store. Methods raise ``BackendUnavailable``.

    Totals never decrease, except that a store which loses its data begins at zero.
    """

    @abstractmethod
    def totals(self) -> Counted:
        """Return the counts since the store was empty."""

    @abstractmethod
    def hours(self, number: int) -> list[Hour]:
        """Return the last ``number`` hours, including the current one, in order of time; hours without a count are
        omitted."""

    @abstractmethod
    def add(self, event: str, kind: str) -> None:
        """Count an event that is part of no operation of the store, by a request of its own: for rare events."""

    @abstractmethod
    def holds(self, name: str, limit: int) -> list[HoldRecord]:
        """Return up to ``limit`` past holds of a name, the latest first."""


def bucket_of(amount: int) -> int:
    """Return the number of the bucket for a duration in milliseconds."""
    return bisect_left(BOUNDS, amount)


def in_bucket(event: str, amount: int) -> str:
    """Return the name of ``event`` with the bucket for a duration in milliseconds."""
    return f"{event}:{bucket_of(amount)}"


@lru_cache(maxsize=1024)
def clean_kind(kind: str) -> str:
    """Return ``kind`` as stores keep it: at most 100 characters, none of them special in JSON or in the scripts.

    A longer one is truncated and ends in a hash of the whole, so that two of them stay distinct.
    """
    kept = kind if len(kind) <= LONGEST_KIND else kind[: LONGEST_KIND - MARK] + mark_of(kind)
    text = "".join(char if char.isprintable() else " " for char in kept)
    return text.translate(_HARMLESS).strip()


def mark_of(kind: str) -> str:
    """Return the suffix of a truncated kind: a hash of the whole."""
    return "~" + hashlib.sha256(kind.encode("utf-8", "surrogatepass")).hexdigest()[: MARK - 1]


_HARMLESS = str.maketrans({'"': "'", "\\": "/", "|": "/"})


def limiter_kind(name: str) -> str:
    """Return the kind of a rate limiter: its name; all tenants of one limiter share the kind ``tavily:tenant``."""
    limiter, tenant = split_tenant(name)
    return clean_kind(limiter if tenant is None else limiter + TENANT.rstrip(":"))


def merged(*parts: Counted) -> dict[tuple[str, str], Count]:
    """Return the sum of several sets of counts."""
    found: dict[tuple[str, str], Count] = {}
    for part in parts:
        for key, count in part.items():
            found[key] = found[key].plus(count) if key in found else count
    return found
