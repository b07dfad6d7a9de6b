"""Reading guarded rows, for those who compare them with locks: nothing here writes.

In the database that claims are written to: a replica may not have them yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from django.db import router
from django.db.models import Model, Q, QuerySet

from django_tasklock.columns import EPOCH, TOKEN, table_options
from django_tasklock.guards.guard import fenced

PAGE = 1000  # rows read by one query
IN = 500  # primary keys in one query: SQLite takes a thousand parameters


class Row(NamedTuple):
    """What one query saw of a row. ``token``: ``None`` where its model has none."""

    pk: Any
    state: Any
    token: str | None


def read(model: type[Model], field: str, pks: list[Any]) -> list[Row]:
    """Return what these rows say now; those that are gone are left out. ``field``: the state column."""
    found = []
    for start in range(0, len(pks), IN):
        found += _seen(model, field, _everything(model).filter(pk__in=pks[start : start + IN]))
    return found


def epoch_of(model: type[Model], pk: Any) -> int | None:
    """Return how often the row was claimed; ``None`` if it is gone, or its model does not count."""
    if not fenced(model):
        return None
    return _everything(model).filter(pk=pk).values_list(EPOCH, flat=True).first()


def claimed_pages(model: type[Model], where: Q, field: str, key: str) -> Iterator[list[Row]]:
    """Yield claimed rows in the order of ``key``, which is what is indexed: each page begins where the last one
    ended.
    """
    claimed = _everything(model).filter(where)
    last: Row | None = None
    while True:
        rest = claimed
        if last is not None:
            rest = rest.filter(**({f"{TOKEN}__gt": last.token} if key == TOKEN else {"pk__gt": last.pk}))
        page = _seen(model, field, rest.order_by(key)[:PAGE])
        full = len(page) == PAGE
        if full and key == TOKEN:  # a token may be on several rows: all of them, at the end of a page
            same = claimed.filter(**{TOKEN: page[-1].token})
            page = [row for row in page if row.token != page[-1].token] + _seen(model, field, same)
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


def _seen(model: type[Model], field: str, rows: QuerySet[Any]) -> list[Row]:
    columns = ("pk", field, TOKEN) if fenced(model) else ("pk", field)
    return [Row(*values, *([None] if len(values) == 2 else [])) for values in rows.values_list(*columns)]
