"""The operations of a store of locks, on rows of ``LockRow``.

A row is changed only by an UPDATE whose condition has the token, fence and expiry that were read, so only one of the
processes that read a lock as free acquires it, at every isolation level.
"""

from __future__ import annotations

from typing import Any, get_args

from django.db.models import Count, Q, QuerySet

from django_tasklock.backends.contract.lists import Counts, Which
from django_tasklock.backends.contract.stores import DAY, LockStore
from django_tasklock.backends.database.leases import ACQUIRE_FACTOR, CHUNK, DatabaseLeases
from django_tasklock.backends.database.names import key_of
from django_tasklock.backends.database.permits import DatabasePermits
from django_tasklock.backends.database.purging import Purging
from django_tasklock.backends.database.rates import DatabaseRates
from django_tasklock.backends.database.rows import (
    FIELDS,
    RELEASED,
    Row,
    granted_columns,
    insert,
    read_row,
    rows_of,
    unchanged,
)
from django_tasklock.conf import Settings, expiring
from django_tasklock.db.clock import Now
from django_tasklock.db.session import Session
from django_tasklock.models import LockRow
from django_tasklock.types import AcquireRequest, Busy, Grant, Record, Released

MAX_ATTEMPTS = 10  # races that one acquire may lose in a row; then the lock counts as busy
RELEASED_KEPT_FOR = 3_600_000  # milliseconds that a released row stays: the clock may be set back by as much
LAPSED_KEPT_FOR = 86_400_000  # milliseconds that a row stays after its lease has run out, if no sweep removed it


def in_state(which: Which) -> Q:
    """Return the filter for the locks in this state."""
    live = Q(expires_at__gt=Now())
    return {
        "live": live,
        "expiring": live & Q(expires_at__lte=Now() + expiring()),
        "no_expiry": Q(pk__in=()),
        "orphaned": Q(expires_at__gt=0, expires_at__lte=Now()),
    }[which]


class DatabaseBackend(DatabaseLeases, LockStore):
    """Locks in SQLite, PostgreSQL or MySQL/MariaDB, by the database's clock.

    Two queries for a free lock, one for a busy one. Operations that write refuse to run inside ``atomic()``. Waiters
    poll. How soon an unreachable server is noticed depends on ``connect_timeout`` in the database's ``OPTIONS``.
    """

    def __init__(self, settings: Settings) -> None:
        self.session = Session()
        self.purging = Purging(self.session, self.purge)
        self.permits = DatabasePermits()
        self.rates = DatabaseRates()

    def rows(self, alias: str) -> QuerySet[Any]:
        return rows_of(alias)

    def acquire(self, request: AcquireRequest) -> Grant | Busy:
        def verb(alias: str, again: bool) -> Grant | Busy:
            key = key_of(request.name)
            for _ in range(MAX_ATTEMPTS):
                row, now = read_row(alias, key)
                fence = now * 1000 if row is None else max(row.fence + 1, now * 1000)  # of the next holder
                if row is None:
                    taken: int = insert(alias, LockRow(key=key, **granted_columns(request, fence)))
                    self.purging.count_row()
                elif not row.live or (request.supersedes and row.token == request.supersedes):
                    taken = unchanged(alias, key, row).update(**granted_columns(request, fence))
                elif row.token == request.token:
                    fence = row.fence
                    taken = unchanged(alias, key, row).update(expires_at=Now() + request.ttl_ms)
                else:
                    return Busy(row.record(), row.expires_at - now)
                if taken:
                    return Grant(fence, request.ttl_ms, int(row is not None and row.lapsed))
            return Busy(None, 0)

        self.purge_if_due(ACQUIRE_FACTOR)
        return self.session.run(verb, name=request.name)

    def release(self, name: str, token: str) -> Released:
        def verb(alias: str, again: bool) -> Released:
            key = key_of(name)
            if self.held(alias, key=key, token=token).update(**RELEASED):
                return Released.RELEASED
            row, _ = read_row(alias, key)
            if row is not None and row.live:
                return Released.NOT_YOURS
            ours = row is not None and row.token == token and row.expires_at < 0
            return Released.RELEASED if again and ours else Released.GONE

        outcome = self.session.run(verb, name=name)
        self.purge_if_due()
        return outcome

    def get(self, name: str) -> Record | None:
        row, _ = self.session.run(lambda alias, again: read_row(alias, key_of(name)), name=name, write=False)
        return row.record() if row is not None and row.live else None

    def records(self, which: Which = "live", *, offset: int = 0, limit: int = 1000) -> list[Record]:
        def verb(alias: str, again: bool) -> list[Record]:
            rows = rows_of(alias).filter(in_state(which)).order_by("expires_at", "key")[offset : offset + limit]
            return [Row(*values).record() for values in rows.annotate(now=Now()).values_list(*FIELDS, "now")]

        return self.session.run(verb, write=False)

    def get_orphaned(self, name: str) -> Record | None:
        row, _ = self.session.run(lambda alias, again: read_row(alias, key_of(name)), name=name, write=False)
        return row.record() if row is not None and row.lapsed else None

    def counts(self) -> Counts:
        def verb(alias: str, again: bool) -> Counts:
            numbers = {which: Count("pk", filter=in_state(which)) for which in get_args(Which)}
            return Counts(**rows_of(alias).filter(expires_at__gt=0).aggregate(**numbers))

        return self.session.run(verb, write=False)

    def _condition(self) -> tuple[int | None, str | None]:
        return self.session.run(lambda alias, again: read_row(alias, ""), write=False)[1], None

    def ask_release(self, name: str, token: str) -> bool:
        def verb(alias: str, again: bool) -> bool:
            held = self.held(alias, key=key_of(name), token=token)
            return held.filter(asked_at=0).update(asked_at=Now()) > 0 or held.exists()

        return self.session.run(verb, name=name)

    def prune(self, limit: int) -> int:
        """Mark orphaned locks as released: the purge deletes their rows after an hour; until then their fences grow."""

        def verb(alias: str, again: bool) -> int:
            lapsed, ended = rows_of(alias).filter(in_state("orphaned")), 0
            keys = list(lapsed.order_by("expires_at").values_list("key", flat=True)[:limit])
            for start in range(0, len(keys), CHUNK):
                ended += lapsed.filter(key__in=keys[start : start + CHUNK]).update(token="", **RELEASED)
            return ended

        return self.session.run(verb)

    def remove(self, name: str, token: str | None = None) -> Record | None:
        def verb(alias: str, again: bool) -> Record | None:
            row, _ = read_row(alias, key_of(name))
            while row is not None and row.expires_at > 0 and token in (None, row.token):
                same = rows_of(alias).filter(key=key_of(name), token=row.token, fence=row.fence, expires_at__gt=0)
                if same.update(token="", **RELEASED):  # even if it was renewed meanwhile
                    return row.record() if row.live else None
                row, _ = read_row(alias, key_of(name))
            return None

        return self.session.run(verb, name=name)

    def next_number(self, name: str = "", member: str = "") -> int:
        """Return the time of the database, as precise as its clock: milliseconds. Tickets drawn within the same one are
        equal.
        """
        _, now = self.session.run(lambda alias, again: read_row(alias, ""), write=False)
        return now * 1000

    def tally(self, name: str, number: int = 1, *, ttl: int = DAY) -> int:
        """Add to a counter: the fence of a row that is like one of a released lock, and that the purge deletes."""

        def verb(alias: str, again: bool) -> int:
            key, counter = key_of(f"tally\n{name}"), 0  # no lock's name has a line break
            for _ in range(MAX_ATTEMPTS):
                row, now = read_row(alias, key)
                counter = number + (0 if row is None else row.fence)
                if not number:
                    break
                new = {"fence": counter, "expires_at": -(now + max(0, ttl - RELEASED_KEPT_FOR))}
                if row is not None and unchanged(alias, key, row).update(**new):
                    return counter
                if row is None and insert(alias, LockRow(key=key, name="", **new)):
                    self.purging.count_row()
                    return counter
            return counter

        return self.session.run(verb, name=name, write=number != 0)

    def close(self) -> None:
        self.session.close_idle()

    def purge(self, limit: int = 200) -> int:
        """Delete up to ``limit`` old released rows and as many old expired ones; return the number deleted."""

        def verb(alias: str, again: bool) -> int:
            released = Q(expires_at__lte=0, expires_at__gt=Now() * -1 + RELEASED_KEPT_FOR)
            lapsed = Q(expires_at__gt=0, expires_at__lt=Now() - LAPSED_KEPT_FOR)
            deleted = 0
            for old in (released, lapsed):
                rows = rows_of(alias).filter(old)
                if keys := list(rows.order_by("expires_at").values_list("key", flat=True)[:limit]):
                    deleted += rows.filter(key__in=keys).delete()[0]
            return deleted

        return self.session.run(verb)
