"""The verbs, over rows of ``LockRow``.

A row is changed only by an UPDATE that names what was read there (token, fence, expiry),
so of any number of processes that saw a lock free one gets it, at every isolation level.
"""

from __future__ import annotations

from typing import Any

from django.db.models import Q, QuerySet

from django_tasklock.backends.contract.locks import LockStore
from django_tasklock.backends.contract.permits import Permits
from django_tasklock.backends.contract.queries import Counts, Page, Pruned, Query
from django_tasklock.backends.contract.rates import RateStore
from django_tasklock.backends.database.leases import DatabaseLeases
from django_tasklock.backends.database.listing import counts_of, page_of, pruned, records_of
from django_tasklock.backends.database.permits import DatabasePermits
from django_tasklock.backends.database.purging import Purging
from django_tasklock.backends.database.rates import DatabaseRates
from django_tasklock.backends.database.rows import RELEASED, insert, key_of, look, rows_of, terms, unchanged
from django_tasklock.conf import Settings
from django_tasklock.db.clock import Now
from django_tasklock.db.session import Session
from django_tasklock.types import AcquireRequest, Busy, Grant, Record, Released

RACES = 10  # lost in a row by one acquire: the lock is in others' hands
RELEASED_FOR = 3_600_000  # milliseconds a released row is kept: by so much the clock may be set back
LAPSED_FOR = 86_400_000  # milliseconds a row is kept whose holder died and nobody swept
UNRELEASED = 4  # times as many rows as usual that are added before a process purges that does not release


class DatabaseBackend(DatabaseLeases, LockStore):
    """Correct on SQLite, PostgreSQL and MySQL/MariaDB, by the database's clock.

    Two queries for a lock that is free, one for a busy one. Verbs that write refuse to work
    inside ``atomic()``. Waiters poll. How soon an unreachable server is noticed is up to
    ``connect_timeout`` in the database's ``OPTIONS``.
    """

    asks = True

    def __init__(self, settings: Settings) -> None:
        self.session = Session()
        self._permits = DatabasePermits()
        self._rates = DatabaseRates()
        self.purging = Purging(self.session, self.purge)

    @property
    def permits(self) -> Permits:
        return self._permits

    @property
    def rates(self) -> RateStore:
        return self._rates

    def rows(self, alias: str) -> QuerySet[Any]:
        return rows_of(alias)

    def acquire(self, request: AcquireRequest) -> Grant | Busy:
        def verb(alias: str, again: bool) -> Grant | Busy:
            key = key_of(request.name)
            for _ in range(RACES):
                row, now = look(alias, key)
                if row is None:
                    fence = now * 1000
                    taken: int = insert(alias, key, request, fence)
                    self.purging.added()
                elif not row.live or (request.supersedes and row.token == request.supersedes):
                    fence = max(row.fence + 1, now * 1000)
                    taken = unchanged(alias, key, row).update(fence=fence, acquired_at=Now(), **terms(request))
                elif row.token == request.token:
                    fence = row.fence
                    taken = unchanged(alias, key, row).update(expires_at=Now() + request.ttl_ms)
                else:
                    return Busy(row.record(), row.expires_at - now)
                if taken:
                    return Grant(fence, request.ttl_ms)
            return Busy(None, 0)

        self.purging.purge_if_due(UNRELEASED)
        return self.session.run(verb, name=request.name)

    def release(self, name: str, token: str) -> Released:
        def verb(alias: str, again: bool) -> Released:
            key = key_of(name)
            if self.held(alias, key=key, token=token).update(**RELEASED):
                return Released.RELEASED
            row, _ = look(alias, key)
            if row is not None and row.live:
                return Released.NOT_YOURS
            ours = row is not None and row.token == token and row.expires_at < 0
            return Released.RELEASED if again and ours else Released.GONE

        outcome = self.session.run(verb, name=name)
        self.purging.purge_if_due()
        return outcome

    def get(self, name: str) -> Record | None:
        row, _ = self.session.run(lambda alias, again: look(alias, key_of(name)), name=name, write=False)
        return row.record() if row is not None and row.live else None

    def records(self, *, expired: bool = False, limit: int = 1000, offset: int = 0) -> list[Record]:
        def verb(alias: str, again: bool) -> list[Record]:
            return records_of(rows_of(alias), Query("orphaned" if expired else "live", offset=offset, limit=limit))

        return self.session.run(verb, write=False)

    def page(self, query: Query) -> Page:
        return self.session.run(lambda alias, again: page_of(rows_of(alias), query), write=False)

    def counts(self) -> Counts:
        return self.session.run(lambda alias, again: counts_of(rows_of(alias)), write=False)

    def _condition(self) -> tuple[int | None, str | None]:
        return self.session.run(lambda alias, again: look(alias, ""), write=False)[1], None

    def ask_release(self, name: str, token: str) -> bool:
        def verb(alias: str, again: bool) -> bool:
            held = self.held(alias, key=key_of(name), token=token)
            return held.filter(asked_at=0).update(asked_at=Now()) > 0 or held.exists()

        return self.session.run(verb, name=name)

    def prune(self, limit: int, *, lapsed_before: int | None = None, prefix: str = "", offset: int = 0) -> Pruned:
        def verb(alias: str, again: bool) -> Pruned:
            return pruned(rows_of(alias), limit, lapsed_before, prefix, offset)

        return self.session.run(verb)

    def remove(self, name: str, token: str | None = None) -> Record | None:
        def verb(alias: str, again: bool) -> Record | None:
            row, _ = look(alias, key_of(name))
            while row is not None and row.expires_at > 0 and token in (None, row.token):
                same = rows_of(alias).filter(key=key_of(name), token=row.token, fence=row.fence, expires_at__gt=0)
                if same.update(token="", **RELEASED):  # renewed or not meanwhile
                    return row.record() if row.live else None
                row, _ = look(alias, key_of(name))
            return None

        return self.session.run(verb, name=name)

    def ticket(self, name: str = "", member: str = "") -> int:
        """Return a number as exact as the database's clock, in milliseconds; what is drawn within one counts as drawn
        at once.
        """
        _, now = self.session.run(lambda alias, again: look(alias, ""), write=False)
        return now * 1000

    def close(self) -> None:
        self.session.close_idle()

    def purge(self, limit: int = 200) -> int:
        """Delete up to ``limit`` released rows, and as many that lapsed, that nobody needs any more; how many."""

        def verb(alias: str, again: bool) -> int:
            released = Q(expires_at__lte=0, expires_at__gt=Now() * -1 + RELEASED_FOR)
            lapsed = Q(expires_at__gt=0, expires_at__lt=Now() - LAPSED_FOR)
            deleted = 0
            for old in (released, lapsed):
                rows = rows_of(alias).filter(old)
                keys = list(rows.order_by("expires_at").values_list("key", flat=True)[:limit])
                if keys:
                    deleted += rows.filter(key__in=keys).delete()[0]
            return deleted

        return self.session.run(verb)
