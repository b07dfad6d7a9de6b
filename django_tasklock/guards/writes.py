"""Writing to a guarded row: its claim, an operator's release and the sweep all do it here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Any, NoReturn

from django.db import connections, transaction
from django.db.models import F, Field, Model, QuerySet
from django.db.models.base import ModelState

from django_tasklock.columns import EPOCH, TOKEN, table_model
from django_tasklock.db.transactions import unchanged


def write(rows: QuerySet[Any], pk: Any, values: Mapping[str, Any], *, same: QuerySet[Any] | None = None) -> bool:
    """Write ``values`` to the row ``pk`` if it is in ``rows``, with those that ``save()`` sets by itself; return
    whether it was.

    It is one UPDATE under the conditions of ``rows``. Columns of a parent model's table are written in the same
    transaction. ``same``: the row if it has the values already, for a database that does not count it then.
    """
    model, using = rows.model, rows.db
    inherited = {name for field in _fields(model) if not _is_own(model, field) for name in (field.name, field.attname)}
    values = {**_set_by_save(model, pk, values), **values}
    own = {name: value for name, value in values.items() if name not in inherited}
    above = {name: value for name, value in values.items() if name in inherited}
    # Django writes the columns of a parent's table in a separate statement, conditional on the key alone. So the
    # conditional write comes first and locks the row: it cannot be claimed before the commit.
    with transaction.atomic(using=using) if above else nullcontext():
        written = bool(rows.update(**(own or no_change(model))))
        written = written or (same is not None and unchanged(connections[using], same))
        if written and above:
            model._base_manager.using(using).filter(pk=pk).update(**above)
    return written


def no_change(model: type[Model]) -> dict[str, Any]:
    """Return a write to a row that changes nothing, which locks it."""
    name = next(field.name for field in _fields(model) if _is_own(model, field))
    return {name: F(name)}


def _set_by_save(model: type[Model], pk: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``save()`` sets by itself, whatever the instance says: columns with ``auto_now``, and the like.

    A field that asks the instance, such as a counter of versions, is left alone.
    """

    def ask(**details: Any) -> NoReturn:
        raise _Asked

    blank = model.__new__(model)  # without __init__(), which may ask as well
    vars(blank).update({"_state": ModelState(), model._meta.pk.attname: pk})
    vars(blank).update(refresh_from_db=ask)  # by which Django loads a missing field
    blank._state.adding = False
    found: dict[str, Any] = {}
    for field in _fields(model):
        plain = type(field).pre_save is Field.pre_save
        if plain or not {field.name, field.attname}.isdisjoint((TOKEN, EPOCH, *values)):
            continue
        try:
            found[field.name] = field.pre_save(blank, False)
        except (_Asked, AttributeError):
            continue
    return found


class _Asked(Exception):
    """A field asked for a value of the instance."""


def _fields(model: type[Model]) -> Iterator[Any]:
    """Yield the fields that ``save()`` writes to an existing row."""
    return (field for field in model._meta.concrete_fields if not (field.primary_key or field.generated))


def _is_own(model: type[Model], field: Any) -> bool:
    return table_model(field.model) is table_model(model)
