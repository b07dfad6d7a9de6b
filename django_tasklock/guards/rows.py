"""Reading guarded rows, to compare them with locks.

They are read from the database that claims are written to, because a replica may not have them yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from django.db import router
from django.db.models import Model, Q, QuerySet

from django_tasklock.columns import EPOCH, TOKEN, table_options
from django_tasklock.db.fresh import fresh
from django_tasklock.guards.guard import Guarded, StateGuard, has_token_columns
from django_tasklock.guards.keys import PK

PAGE = 1000  # rows read by one query
NEWEST = 100_000
"""Rows that are searched, by primary key, where no index has their state."""
IN = 500  # keys in one query: SQLite takes a thousand parameters


class Row(NamedTuple):
    """A row as one query has read it. ``values``: states and keys, by column. ``token``: ``None`` if it has none."""

    pk: Any
    values: dict[str, Any]
    token: str | None

    def key_for(self, guarded: Guarded) -> Any:
        """Return the key by which this guard's function names the row."""
        return self.pk if guarded.lookup == PK else self.values[guarded.lookup]

    def claimed_by(self, guard: StateGuard) -> bool:
        """Tell whether the row is as a claim by this guard leaves it: in that state, or with a token."""
        return bool(self.values[guard.field] == guard.claim_as if guard.field else self.token)


def state_columns(guarded: Iterable[Guarded]) -> list[str]:
    """Return the state columns of these guards."""
    return sorted({one.guard.field for one in guarded} - {""})


def columns_of(guarded: Iterable[Guarded]) -> list[str]:
    """Return the columns that are read for these guards: states, and keys beside the primary key."""
    guarded = list(guarded)
    return sorted({*state_columns(guarded), *(one.lookup for one in guarded)} - {PK})


def read(model: type[Model], columns: Iterable[str], keys: list[Any], lookup: str = PK) -> list[Row]:
    """Return the rows with these keys and their ``columns``, without those that do not exist."""
    columns, found = tuple(columns), []
    for start in range(0, len(keys), IN):
        found += _seen(model, columns, _everything(model).filter(**{f"{lookup}__in": keys[start : start + IN]}))
    return found


def epoch_of(model: type[Model], pk: Any) -> int | None:
    """Return the epoch of the row; ``None`` if it does not exist, or its model has no token columns."""
    if not has_token_columns(model):
        return None
    return _everything(model).filter(pk=pk).values_list(EPOCH, flat=True).first()


def claimed_pages(model: type[Model], where: Q, columns: Iterable[str], key: str) -> Iterator[list[Row]]:
    """Yield pages of claimed rows in the order of the indexed column ``key``."""
    claimed, columns = _everything(model).filter(where), tuple(columns)
    last: Row | None = None
    while True:
        rest = claimed
        if last is not None:
            rest = rest.filter(**({f"{TOKEN}__gt": last.token} if key == TOKEN else {"pk__gt": last.pk}))
        page = _seen(model, columns, rest.order_by(key)[:PAGE])
        full = len(page) == PAGE
        if full and key == TOKEN:  # several rows may have one token: add all of those with the last one
            same = claimed.filter(**{TOKEN: page[-1].token})
            page = [row for row in page if row.token != page[-1].token] + _seen(model, columns, same)
        if not page:
            return
        yield page
        if not full:
            return
        last = page[-1]


def has_index(model: type[Model], column: str) -> bool:
    """Return whether a model has an index of all rows that begins with this column."""
    meta: Any = table_options(model)
    return meta.get_field(column).db_index or any(
        index.fields[:1] == [column] and index.condition is None for index in meta.indexes
    )


def has_token_index(model: type[Model]) -> bool:
    """Return whether a model with tokens has an index of all rows that begins with them, as ``GuardedModel`` has."""
    return has_index(model, TOKEN)


def newest(model: type[Model]) -> Any:
    """Return the key beyond which the last ``NEWEST`` rows are; ``None``: there are not so many."""
    return _everything(model).order_by("-pk").values_list("pk", flat=True)[NEWEST : NEWEST + 1].first()


def _everything(model: type[Model]) -> QuerySet[Any]:
    return fresh(model._base_manager.using(router.db_for_write(model)))


def _seen(model: type[Model], columns: tuple[str, ...], rows: QuerySet[Any]) -> list[Row]:
    if has_token_columns(model):
        seen = rows.values_list("pk", TOKEN, *columns)
        return [Row(pk, dict(zip(columns, states, strict=True)), token) for pk, token, *states in seen]
    seen = rows.values_list("pk", *columns)
    return [Row(pk, dict(zip(columns, states, strict=True)), None) for pk, *states in seen]
