"""Whether guards fit their models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from django.apps import apps
from django.core import checks
from django.core.exceptions import FieldDoesNotExist, FieldError, ValidationError
from django.db.models import Model, Q
from django.db.models.constants import LOOKUP_SEP

from django_tasklock.guards import EPOCH, TOKEN, StateGuard, fenced, registered

__all__ = ["check_guards"]


def check_guards(app_configs: Any = None, **kwargs: Any) -> list[checks.CheckMessage]:
    """E004: a guard that cannot work. W003: rows that cannot refuse a stale worker. W007: rows nobody finds quickly."""
    found: list[checks.CheckMessage] = []
    told: set[tuple[str, str]] = set()
    for named, guard, *_ in registered():
        try:
            model = apps.get_model(named) if isinstance(named, str) else named
        except (LookupError, ValueError) as error:
            text = f"model_lock names {named!r}: {error}"
            found.append(checks.Error(text, hint="Use 'app_label.Model'.", id="tasklock.E004"))
            continue
        unfit = [*_guard(model, guard)]
        found += unfit
        for message in _wanting(model, guard, unfit=bool(unfit)):
            if (model._meta.label, message.msg) not in told:
                told.add((model._meta.label, message.msg))
                found.append(message)
    return found


def _guard(model: type[Model], guard: StateGuard) -> Iterable[checks.CheckMessage]:
    label = model._meta.label
    found = []
    for name in (guard.field, *((TOKEN, EPOCH) if fenced(model) else ())):
        try:
            field = model._meta.get_field(name)
        except FieldDoesNotExist:
            found.append(_unfit(model, f"The guard of {label} names {name!r}, which is no field of it.", None))
            continue
        if field not in _table(model).local_concrete_fields:
            text = f"{label}.{name} is no column of its own table, so one UPDATE cannot judge it."
            found.append(_unfit(model, text, "Guard the model whose table has the column."))
    return found or _where(model, guard)


def _where(model: type[Model], guard: StateGuard) -> Iterable[checks.CheckMessage]:
    label = model._meta.label
    try:
        query = model._base_manager.filter(guard.claimable(None)).query
    except (FieldError, TypeError, ValueError, ValidationError) as error:
        yield _unfit(model, f"The guard of {label} cannot be asked of the database: {error}", None)
        return
    if query.count_active_tables() > 1:
        text = f"The guard of {label} excludes by a joined table, so one UPDATE cannot judge it."
        yield _unfit(model, text, "Write it as exclude=Exists(...), or exclude by a column of the row.")


def _wanting(model: type[Model], guard: StateGuard, *, unfit: bool) -> Iterator[checks.CheckMessage]:
    label = model._meta.label
    if not fenced(model):
        yield checks.Warning(
            f"{label} is guarded by its state alone: a worker that lost its lock is refused"
            " only after its successor has finished.",
            hint="Add django_tasklock.models.GuardedModel to its bases and migrate.",
            obj=model,
            id="tasklock.W003",
        )
    wanted = TOKEN if fenced(model) else guard.field  # what tells a claimed row
    if not unfit and wanted not in indexed(model):
        yield checks.Warning(
            f"No index of {label} begins with {wanted!r}: a sweep reads the whole table.",
            hint=f"Add models.Index(fields=[{wanted!r}]) to its Meta.indexes, and migrate.",
            obj=model,
            id="tasklock.W007",
        )


def indexed(model: type[Model]) -> set[str]:
    """The fields by which rows are found without reading all: first of an index, or the condition of one."""
    meta = _table(model)
    found = {field.name for field in meta.local_concrete_fields if field.db_index or field.unique}
    for index in (*meta.indexes, *(one for one in meta.constraints if hasattr(one, "fields"))):
        first = index.fields[0] if index.fields else _column(next(iter(index.expressions), None))
        found |= {str(first).removeprefix("-"), *_names(getattr(index, "condition", None))}
    return found | {together[0] for together in meta.unique_together if together}


def _column(expression: object) -> object:
    """The field of ``F("state")`` or ``F("state").desc()``; of anything else none that the sweep could use."""
    return getattr(getattr(expression, "expression", expression), "name", "")


def _names(condition: object) -> Iterator[str]:
    """The fields a partial index is limited by."""
    if isinstance(condition, Q):
        for child in condition.children:
            yield from _names(child)
    elif isinstance(condition, tuple):
        yield str(condition[0]).partition(LOOKUP_SEP)[0]


def _table(model: type[Model]) -> Any:
    concrete = model._meta.concrete_model  # a proxy has no columns of its own
    return (concrete or model)._meta


def _unfit(model: type[Model], text: str, hint: str | None) -> checks.CheckMessage:
    return checks.Error(text, hint=hint, obj=model, id="tasklock.E004")
