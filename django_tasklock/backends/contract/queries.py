"""What to list of the locks, and what comes of it."""

from __future__ import annotations

from typing import Literal, NamedTuple

from django_tasklock.types import Holder, Record

Which = Literal["live", "expiring", "no_expiry", "orphaned"]
"""Locks by what is left of their leases: ``live`` (the next two included), ``expiring`` (soon, unless
renewed), ``no_expiry``, ``orphaned`` (the holder let it end: free, and still in the index)."""
Order = Literal["expiry", "age", "left"]
"""By what is left of the lease, by how long it is held, by what is left of the timeout.

A store with an index of the first alone puts ``Backend.orders`` locks at a time into one of the others: the first so
many by the first, then the next.
"""


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

    @property
    def searches(self) -> bool:
        """Whether something is looked for that no index tells."""
        return bool(self.text or self.task or self.row or self.waiting)

    def matches(self, record: Record) -> bool:
        """Return whether a lock is what is looked for."""
        holder = record.holder
        return (
            self.text.lower() in record.name.lower()
            and self.task in ("", holder.task)
            and self.row in ("", holder.row)
            and (record.waiting > 0 or not self.waiting)
        )


class Page(NamedTuple):
    """Some locks. ``total``: how many there are of that kind, before what is looked for.
    ``next``: the offset at which to go on; ``None``: there are no more."""

    records: list[Record]
    total: int
    next: int | None


class NotedWait(NamedTuple):
    """What the holder of a lock waits for without a place in any queue. Milliseconds since 1970, the store's."""

    what: str
    since: int
    now: int


class Waiting(NamedTuple):
    """Somebody in the queue of a lock, or of a limiter. Times are the store's, in milliseconds since 1970."""

    holder: Holder
    """Who it is that would hold it."""
    since: int
    now: int
    present: bool = True
    """False if it has not looked for as long as a claim lasts: it is passed over."""


class Queued(NamedTuple):
    """The first of those who wait. ``total``: how many there are."""

    waiting: list[Waiting]
    total: int


class Counts(NamedTuple):
    """How many locks there are of each kind: ``expiring`` and ``no_expiry`` ones are live ones as well."""

    live: int
    expiring: int
    no_expiry: int
    orphaned: int


class Pruned(NamedTuple):
    """What was forgotten of what had lapsed. ``kept``: what was looked at and stays, to be left out next time."""

    removed: int
    kept: int
