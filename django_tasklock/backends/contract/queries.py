"""Queries for lists of locks and waiters, and their results."""

from __future__ import annotations

from typing import Literal, NamedTuple

from django_tasklock.types import Holder, Record

Which = Literal["live", "expiring", "no_expiry", "orphaned"]
"""Locks by the state of their lease: ``live`` (includes the next two), ``expiring`` (soon, unless renewed),
``no_expiry``, ``orphaned`` (the lease has run out: the lock is free and still in the index)."""
Order = Literal["expiry", "age", "left"]
"""By time left of the lease (``expiry``), by time held (``age``), by time left of the timeout (``left``).

A store whose index is by expiry alone sorts ``LockStore.orders`` locks at a time by the other two: the first part of
the index, then the next.
"""


class Query(NamedTuple):
    """Which locks to list, and in which order: live ones in any order, the others by expiry.

    The filters are ``text`` (contained in the name, ignoring the case of ASCII letters), ``task`` (the full task
    name) and ``waiting`` (has waiters). They are applied to a limited number of locks from
    ``offset`` on: ``Page.next`` is where to continue.
    """

    which: Which = "live"
    order: Order = "expiry"
    descending: bool = False
    text: str = ""
    task: str = ""
    waiting: bool = False
    offset: int = 0
    limit: int = 100

    @property
    def searches(self) -> bool:
        """Whether the query has a filter for which the store has no index."""
        return bool(self.text or self.task or self.waiting)

    def matches(self, record: Record) -> bool:
        """Return whether a lock matches the query."""
        return (
            self.text.lower() in record.name.lower()
            and self.task in ("", record.holder.task)
            and (record.waiting > 0 or not self.waiting)
        )


class Page(NamedTuple):
    """One page of locks. ``total``: the number of locks in that state, without the filters.
    ``next``: the offset at which to continue; ``None``: there are no more."""

    records: list[Record]
    total: int
    next: int | None


class Waiting(NamedTuple):
    """A waiter in the queue of a lock or of a limiter. Times are the store's, in milliseconds since 1970."""

    holder: Holder
    """The holder it would become."""
    since: int
    now: int
    present: bool = True
    """False if it has not polled for as long as a handed-over lock stays reserved for its waiter: it is passed over."""


class Queued(NamedTuple):
    """The first waiters of a queue. ``total``: the number of all."""

    waiting: list[Waiting]
    total: int


class Counts(NamedTuple):
    """The number of locks in each state; ``live`` includes ``expiring`` and ``no_expiry``."""

    live: int
    expiring: int
    no_expiry: int
    orphaned: int


class Pruned(NamedTuple):
    """The number of orphaned locks dropped. ``kept``: those examined that stay, to be skipped next time."""

    removed: int
    kept: int
