"""Permits as rows of one table, and a row for each limiter that serializes its grants.

A caller reads the limiter's row, counts the permits, and adds its own in the transaction that changes the limiter's row
on condition that it is as it was read. So only one of the processes that counted the same permits is granted one, at
every isolation level. Releases and renewals change only the permit's own row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Max, QuerySet, Value

from django_tasklock.backends.contract.stores import Permits
from django_tasklock.backends.database.leases import ACQUIRE_FACTOR, DatabaseLeases
from django_tasklock.backends.database.names import key_of
from django_tasklock.backends.database.purging import Purging
from django_tasklock.backends.database.rows import FIELDS, Row, holder_text
from django_tasklock.db.clock import AggregateNow, Now
from django_tasklock.db.fresh import fresh
from django_tasklock.db.session import Session
from django_tasklock.models import LimiterRow, PermitRow
from django_tasklock.types import AcquireRequest, Busy, Grant, Record, Released

MAX_ATTEMPTS = 10  # races that one acquire may lose in a row; then the limiter counts as full
KEPT_FOR = 3_600_000  # milliseconds that an old row stays: the clock may be set back by as much


class DatabasePermits(DatabaseLeases, Permits):
    """Permits in SQLite, PostgreSQL or MySQL/MariaDB: four queries for a free permit, two if there is none.

    Waiters poll, in no order.
    """

    def __init__(self) -> None:
        self.session = Session(PermitRow, "permit")
        self.purging = Purging(self.session, self.purge)

    def rows(self, alias: str) -> QuerySet[Any]:
        return permits(alias)

    def acquire(self, request: AcquireRequest) -> Grant | Busy:
        def verb(alias: str, again: bool) -> Grant | Busy:
            key = key_of(request.name)
            live: list[Row] = []
            for _ in range(MAX_ATTEMPTS):
                # In this order: a permit granted between the two queries is counted, or has changed the fence.
                last, now = read_limiter(alias, key)
                rows = read_permits(permits(alias).filter(key=key))
                live = [row for row in rows if row.live]
                mine = next((row for row in live if row.token == request.token), None)
                if mine is not None:
                    held = permits(alias).filter(token=request.token, expires_at__gt=Now())
                    if held.update(expires_at=Now() + request.ttl_ms) or held.exists():
                        return Grant(mine.fence, request.ttl_ms)
                elif len(live) >= request.limit:
                    return busy(live)
                else:
                    if last is None:
                        self.purging.count_row()
                    fence = max((last or 0) + 1, now * 1000)
                    lapsed = [row.token for row in rows if not row.live]
                    if admit(alias, key, request, last, fence, lapsed):
                        return Grant(fence, request.ttl_ms, len(lapsed))
            return busy(live)

        self.purge_if_due(ACQUIRE_FACTOR)
        return self.session.run(verb, name=request.name)

    def release(self, name: str, token: str) -> Released:
        def verb(alias: str, again: bool) -> Released:
            mine = permits(alias).filter(token=token, key=key_of(name))
            if mine.filter(expires_at__gt=Now()).delete()[0]:
                return Released.RELEASED
            return Released.GONE if mine.delete()[0] or not again else Released.RELEASED

        outcome = self.session.run(verb, name=name)
        self.purge_if_due()
        return outcome

    def members(self, name: str) -> list[Record]:
        def verb(alias: str, again: bool) -> list[Row]:
            return read_permits(permits(alias).filter(key=key_of(name), expires_at__gt=Now()))

        return [row.record() for row in self.session.run(verb, name=name, write=False)]

    def members_of(self, names: Sequence[str]) -> list[list[Record]]:
        def verb(alias: str, again: bool) -> list[Row]:
            return read_permits(permits(alias).filter(key__in=list(map(key_of, names)), expires_at__gt=Now()))

        found: dict[str, list[Record]] = {name: [] for name in names}
        for row in self.session.run(verb, write=False):
            record = row.record()
            found.get(record.name, []).append(record)
        return list(found.values())

    def remove(self, name: str, token: str) -> Record | None:
        def verb(alias: str, again: bool) -> Record | None:
            mine = permits(alias).filter(token=token, key=key_of(name))
            rows = read_permits(mine)
            removed = mine.delete()[0]  # even if it was renewed meanwhile
            return rows[0].record() if rows and rows[0].live and removed else None

        return self.session.run(verb, name=name)

    def names(self, limit: int = 1000) -> list[str]:
        def verb(alias: str, again: bool) -> list[str]:
            firsts = permits(alias).filter(expires_at__gt=Now()).values("key").annotate(one=Max("token"))
            tokens = [row["one"] for row in firsts.order_by("key")[:limit]]
            return [row.record().name for row in read_permits(permits(alias).filter(token__in=tokens))]

        return self.session.run(verb, write=False)

    def purge(self, limit: int = 200) -> int:
        """Delete up to ``limit`` expired permits and as many unused limiters; return the number deleted."""

        def verb(alias: str, again: bool) -> int:
            lapsed = permits(alias).filter(expires_at__lt=Now() - KEPT_FOR).order_by("expires_at")
            tokens = list(lapsed.values_list("token", flat=True)[:limit])
            idle = limiters(alias).filter(fence__lt=(Now() - KEPT_FOR) * 1000).order_by("fence")
            keys = list(idle.values_list("key", flat=True)[:limit])
            deleted = 0
            if tokens:
                deleted += permits(alias).filter(token__in=tokens, expires_at__lt=Now() - KEPT_FOR).delete()[0]
            if keys:  # a limiter used meanwhile has a greater fence; live permits are counted without this row, too
                deleted += limiters(alias).filter(key__in=keys, fence__lt=(Now() - KEPT_FOR) * 1000).delete()[0]
            return deleted

        return self.session.run(verb)


def permits(alias: str) -> QuerySet[Any]:
    """Return the rows of all permits in the database ``alias``; their holders are never asked to release them."""
    return fresh(PermitRow._base_manager.using(alias)).annotate(asked_at=Value(0))


def limiters(alias: str) -> QuerySet[LimiterRow]:
    """Return the rows of all limiters in the database ``alias``."""
    return fresh(LimiterRow._base_manager.using(alias))


def read_permits(found: QuerySet[Any]) -> list[Row]:
    """Return permits in the order in which they were granted."""
    return [Row(*values) for values in found.order_by("fence").annotate(now=Now()).values_list(*FIELDS, "now")]


def read_limiter(alias: str, key: str) -> tuple[int | None, int]:
    """Return the fence of the limiter's last grant, and the database's time."""
    found: dict[str, Any] = limiters(alias).filter(key=key).aggregate(last=Max("fence"), now=AggregateNow())
    return found["last"], found["now"]


def busy(live: list[Row]) -> Busy:
    """Return the answer for a caller that is refused: the permit that expires first."""
    first = min(live, key=lambda row: row.expires_at, default=None)
    return Busy(None, 0) if first is None else Busy(first.record(), first.expires_at - first.now)


def admit(alias: str, key: str, request: AcquireRequest, last: int | None, fence: int, lapsed: list[str]) -> bool:
    """Grant a permit, unless another one was granted since ``last`` was read. ``lapsed``: the tokens to delete."""
    row = PermitRow(
        token=request.token,
        key=key,
        holder=holder_text(request),
        acquired_at=Now(),
        hold_until=Now() + request.hold_ms,
        expires_at=Now() + request.ttl_ms,
        fence=fence,
    )
    try:
        with transaction.atomic(using=alias):
            if last is None:
                limiters(alias).bulk_create([LimiterRow(key=key, fence=fence)])
            elif not limiters(alias).filter(key=key, fence=last).update(fence=fence):
                return False
            if lapsed:  # a concurrent acquire cannot count them as well: only this one has changed the limiter's row
                permits(alias).filter(token__in=lapsed, expires_at__lte=Now()).delete()
            permits(alias).bulk_create([row])  # unlike save(): no signals to receivers meant for other models
    except IntegrityError:
        return False
    return True
