"""Reading guarded rows, for those who compare them with locks: nothing here writes.

In the database that claims are written to: a replica may not have them yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from django.db import router
from django.db.models import Model, Q, QuerySet

from django_tasklock.columns import EPOCH, TOKEN, table_options
from django_tasklock.guards.guard import Guarded, StateGuard, has_token_columns

PAGE = 1000  # rows read by one query
IN = 500  # primary keys in one query: SQLite takes a thousand parameters


class Row(NamedTuple):
    """What one query saw of a row. ``states``: by state column. ``token``: ``None`` where its model has none."""

    pk: Any
    states: dict[str, Any]
    token: str | None

    def claimed_by(self, guard: StateGuard) -> bool:
        """Return whether the row is in the state that this guard claims it to."""
        return bool(self.states[guard.field] == guard.claim_as)

    def claimable_by(self, guard: StateGuard) -> bool:
        """Return whether the row is in a state that this guard claims from."""
        return self.states[guard.field] in guard.claim_from


def state_columns(guarded: Iterable[Guarded]) -> list[str]:
    """Return the state columns of these guards."""
    return sorted({one.guard.field for one in guarded})


def read(model: type[Model], columns: Iterable[str], pks: list[Any]) -> list[Row]:
    """Return what these rows say now, in these state columns; those that are gone are left out."""
    columns, found = tuple(columns), []
    for start in range(0, len(pks), IN):
        found += _seen(model, columns, _everything(model).filter(pk__in=pks[start : start + IN]))
    return found


def epoch_of(model: type[Model], pk: Any) -> int | None:
    """Return how often the row was claimed; ``None`` if it is gone, or its model does not count."""
    if not has_token_columns(model):
        return None
    return _everything(model).filter(pk=pk).values_list(EPOCH, flat=True).first()


def claimed_pages(model: type[Model], where: Q, columns: Iterable[str], key: str) -> Iterator[list[Row]]:
    """Yield claimed rows in the order of ``key``, which is what is indexed: each page begins where the last one
    ended.
    """
    claimed, columns = _everything(model).filter(where), tuple(columns)
    last: Row | None = None
    while True:
        rest = claimed
        if last is not None:
            rest = rest.filter(**({f"{TOKEN}__gt": last.token} if key == TOKEN else {"pk__gt": last.pk}))
        page = _seen(model, columns, rest.order_by(key)[:PAGE])
        full = len(page) == PAGE
        if full and key == TOKEN:  # a token may be on several rows: all of them, at the end of a page
            same = claimed.filter(**{TOKEN: page[-1].token})
            page = [row for row in page if row.token != page[-1].token] + _seen(model, columns, same)
        if not page:
            return
        yield page
        if not full:
            return
        last = page[-1]


def indexed(model: type[Model]) -> set[str]:
    """Return the fields that an index of all rows begins with."""
    meta: Any = table_options(model)
    found = {field.name for field in meta.local_concrete_fields if field.db_index or field.unique}
    for index in (*meta.indexes, *meta.constraints):
        if hasattr(index, "fields") and getattr(index, "condition", None) is None:
            first = index.fields[0] if index.fields else _column(next(iter(index.expressions), None))
            found.add(str(first).removeprefix("-"))
    return found | {together[0] for together in meta.unique_together if together}


def _column(expression: object) -> object:
    """Return the field of ``F("state")`` or ``F("state").desc()``; of anything else none that the sweep could use."""
    return getattr(getattr(expression, "expression", expression), "name", "")


def _everything(model: type[Model]) -> QuerySet[Any]:
    return model._base_manager.using(router.db_for_write(model))


def _seen(model: type[Model], columns: tuple[str, ...], rows: QuerySet[Any]) -> list[Row]:
    if has_token_columns(model):
        seen = rows.values_list("pk", TOKEN, *columns)
        return [Row(pk, dict(zip(columns, states, strict=True)), token) for pk, token, *states in seen]
    seen = rows.values_list("pk", *columns)
    return [Row(pk, dict(zip(columns, states, strict=True)), None) for pk, *states in seen]
