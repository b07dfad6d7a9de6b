"""Pages of the lock table, each read from one of its indexes."""

from __future__ import annotations

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
MOST = 5000  # rows that one page examines for a filter that has no index


def state_filters() -> dict[str, Q]:
    """Return the filter for the locks in each state."""
    soon = LIVE & Q(expires_at__lte=Now() + expiring())
    return {"live": LIVE, "expiring": soon, "no_expiry": Q(pk__in=()), "orphaned": ORPHANED}


def page_of(rows: QuerySet[LockRow], query: Query) -> Page:
    """Return one page of locks, and the offset of the next."""
    total = rows.filter(state_filters()[query.which]).count()
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
    """Return the locks in the state of the query, in its order, without its other filters."""
    order = ORDERS[query.order if query.which == "live" else "expiry"]
    when = state_filters()[query.which]
    if order != "expires_at":
        when &= Q(**{f"{order}__gt": 0})  # released rows have 0 there: the index skips them
    down = "-" if query.descending is not (query.order == "age" and order == "acquired_at") else ""
    page = rows.filter(when).order_by(f"{down}{order}", f"{down}key")[query.offset : query.offset + query.limit]
    return [Row(*values).record() for values in page.annotate(now=Now()).values_list(*FIELDS, "now")]


def counts_of(rows: QuerySet[LockRow]) -> Counts:
    """Return the number of locks in each state."""
    numbers = {which: Count("pk", filter=when) for which, when in state_filters().items() if which != "no_expiry"}
    return Counts(no_expiry=0, **rows.filter(expires_at__gt=0).aggregate(**numbers))


def prune_lapsed(rows: QuerySet[LockRow], limit: int, before: int | None, prefix: str, offset: int) -> Pruned:
    """Mark orphaned locks as released: the purge deletes their rows after an hour, and their fences grow until then."""
    lapsed = rows.filter(ORPHANED)
    if before is not None:
        lapsed = lapsed.filter(expires_at__lte=before)
    page = lapsed.order_by("expires_at", "key")[offset : offset + limit].annotate(now=Now())
    looked = [(key, Row(*values)) for key, *values in page.values_list("key", *FIELDS, "now")]
    gone = [key for key, row in looked if row.record().name.startswith(prefix)]
    ended = 0
    for start in range(0, len(gone), CHUNK):  # SQLite allows few parameters
        ended += lapsed.filter(key__in=gone[start : start + CHUNK]).update(token="", **RELEASED)
    return Pruned(ended, len(looked) - len(gone))
