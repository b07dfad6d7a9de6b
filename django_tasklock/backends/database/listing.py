"""Pages of the lock table, each by one of its indexes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from django.db import transaction
from django.db.models import Count, Q, QuerySet

from django_tasklock.backends.contract.queries import Counts, Page, Pruned, Query
from django_tasklock.backends.database.rows import FIELDS, RELEASED, Row
from django_tasklock.conf import expiring
from django_tasklock.db.clock import Now
from django_tasklock.models import LockRow
from django_tasklock.types import Record

LIVE = Q(expires_at__gt=Now())
ORPHANED = Q(expires_at__gt=0, expires_at__lte=Now())
ORDERS = {"expiry": "expires_at", "age": "acquired_at", "left": "hold_until"}
CHUNK = 200  # rows changed by one statement
MOST = 5000  # rows looked at for what no index knows


def kinds() -> dict[str, Q]:
    """Return what tells the rows of each kind."""
    soon = LIVE & Q(expires_at__lte=Now() + expiring())
    return {"live": LIVE, "expiring": soon, "no_expiry": Q(pk__in=()), "orphaned": ORPHANED}


def page_of(rows: QuerySet[LockRow], query: Query) -> Page:
    """Return some locks, and where to go on."""
    total = rows.filter(kinds()[query.which]).count()
    if not query.searches:
        found = records_of(rows, query)
        ends = query.offset + len(found)
        return Page(found, total, ends if ends < total and found else None)
    found = []
    looked = records_of(rows, query._replace(limit=MOST))
    for number, record in enumerate(looked, query.offset):
        if len(found) >= query.limit:
            return Page(found, total, number)
        if query.matches(record):
            found.append(record)
    ends = query.offset + len(looked)
    return Page(found, total, ends if ends < total and looked else None)


def records_of(rows: QuerySet[LockRow], query: Query) -> list[Record]:
    """Return locks of the kind that is asked for, in the order asked for, whatever else is looked for."""
    order = ORDERS[query.order if query.which == "live" else "expiry"]
    when = kinds()[query.which]
    if order != "expires_at":
        when &= Q(**{f"{order}__gt": 0})  # so that its index leaves out what was released
    down = "-" if query.descending is not (query.order == "age" and order == "acquired_at") else ""
    page = rows.filter(when).order_by(f"{down}{order}", f"{down}key")[query.offset : query.offset + query.limit]
    return [Row(*values).record() for values in page.annotate(now=Now()).values_list(*FIELDS, "now")]


def counts_of(rows: QuerySet[LockRow]) -> Counts:
    """Return how many locks there are of each kind."""
    numbers = {which: Count("pk", filter=when) for which, when in kinds().items() if which != "no_expiry"}
    return Counts(no_expiry=0, **rows.filter(expires_at__gt=0).aggregate(**numbers))


def pruned(
    rows: QuerySet[LockRow],
    limit: int,
    before: int | None,
    prefix: str,
    offset: int,
    expired: Callable[[list[Row]], object],
) -> Pruned:
    """Let rows that lapsed count as released: the purge removes them in an hour, and their fences go on until then."""
    lapsed = rows.filter(ORPHANED)
    if before is not None:
        lapsed = lapsed.filter(expires_at__lte=before)
    page = lapsed.order_by("expires_at", "key")[offset : offset + limit].annotate(now=Now())
    looked = [(key, Row(*values)) for key, *values in page.values_list("key", *FIELDS, "now")]
    gone = [(key, row) for key, row in looked if row.record().name.startswith(prefix)]

    def end(found: QuerySet[LockRow]) -> int:
        return found.update(token="", **RELEASED)

    return Pruned(each_once(lapsed, gone, end, expired), len(looked) - len(gone))


def each_once(
    rows: QuerySet[LockRow],
    gone: Sequence[tuple[str, Row]],
    end: Callable[[QuerySet[LockRow]], int],
    counted: Callable[[list[Row]], object],
) -> int:
    """End these rows as they were read, many at a time, and count each that is ended here; how many."""
    ended = 0
    for start in range(0, len(gone), CHUNK):  # SQLite knows few parameters
        part = gone[start : start + CHUNK]
        with transaction.atomic(using=rows.db):
            wanted = [row.token for _, row in part]
            if whole := end(rows.filter(key__in=[key for key, _ in part], token__in=wanted)) == len(part):
                counted([row for _, row in part])
            else:
                transaction.set_rollback(True, using=rows.db)
        if whole:
            ended += len(part)
            continue
        for key, row in part:  # somebody else has ended some of them meanwhile
            with transaction.atomic(using=rows.db):
                if end(rows.filter(key=key, token=row.token)):
                    counted([row])
                    ended += 1
    return ended
