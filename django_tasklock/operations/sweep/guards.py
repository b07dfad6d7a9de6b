"""The guarded rows: which guards apply to a row, and its values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from django.db import connections, router
from django.db.models import Model, Q

from django_tasklock.columns import TOKEN, table_model
from django_tasklock.conf import get_settings
from django_tasklock.exceptions import TaskLockError
from django_tasklock.guards.guard import Guarded, StateGuard, has_token_columns, registered
from django_tasklock.guards.keys import PK
from django_tasklock.guards.rows import Row, columns_of, has_index, has_token_index, newest, read
from django_tasklock.operations.guarded_rows import RowKey, find_guard, model_of, resolve_row
from django_tasklock.operations.sweep.options import SweepOptions
from django_tasklock.types import Record


class NamedRow(NamedTuple):
    """The row that a lock names. ``row``: ``None`` if it does not exist; ``model``: the one that has the table."""

    model: type[Model]
    row: Row | None


class Guards:
    """All registered guards by the model that has the table: those of a proxy with those of its model."""

    def __init__(self, options: SweepOptions) -> None:
        self.by_model: dict[type[Model], list[Guarded]] = {}
        self.unknown_models: list[str] = []
        labels: set[str] = set()
        for one in registered():
            model = model_of(one)
            if model is None:
                self.unknown_models.append(str(one.model))
                continue
            labels.add(model._meta.label_lower)
            self.by_model.setdefault(table_model(model), []).append(one._replace(model=model))
        if unguarded := sorted(model._meta.label_lower for model in options.models - self.by_model.keys()):
            guarded = ", ".join(sorted(labels)) or "none"
            raise TaskLockError(f"no guard is registered for {', '.join(unguarded)}; guarded: {guarded}")
        if options.models:
            self.by_model = {table: self.by_model[table] for table in options.models}
        self.without_table = [] if get_settings().tenant_function is None else _without_table(self.by_model)
        for model in self.without_table:
            del self.by_model[model]

    def claim_queries(self) -> Iterator[tuple[type[Model], Q, str, list[Guarded]]]:
        """Yield (model, filter of claimed rows, ordering column, guards that may have claimed them).

        A claimed row of a model with tokens has one, whatever state its body has moved it to: searched are the states
        of its guards, or all rows with a token if an index begins with it, or a guard has no states. Without tokens,
        the state alone tells.
        """
        for model, guards in self.by_model.items():
            by_index = has_token_columns(model) and has_token_index(model)
            if by_index or (has_token_columns(model) and not all(one.guard.field for one in guards)):
                yield model, Q(**{f"{TOKEN}__gt": ""}), TOKEN if by_index else "pk", guards
                continue
            groups: dict[str, list[Guarded]] = {}
            for one in guards:
                if one.guard.field:  # otherwise it cannot claim these rows, as tasklock.E004 says
                    groups.setdefault(one.guard.field, []).append(one)
            seen = Q()  # rows found by an earlier state column: a row with a token is checked once
            for field, group in groups.items():
                states = {one.guard.claim_as for one in group}
                if has_token_columns(model):
                    states.update(*(one.guard.claim_from for one in group))
                for state in sorted(states, key=repr):  # one state at a time: the index is then in primary key order
                    where = Q(**{field: state})
                    if has_token_columns(model):
                        yield model, where & ~Q(**{TOKEN: ""}) & ~seen, "pk", guards
                    else:
                        yield model, where, "pk", group
                if has_token_columns(model):
                    seen |= Q(**{f"{field}__in": states})

    def unclaimed_queries(self) -> Iterator[tuple[type[Model], Q, bool, list[Guarded]]]:
        """Yield (model, filter of rows in a claimed state without a token, whether it is claimable, its guards).

        A state in which rows also rest, done or failed, is left out, as are the rows that a guard excludes.
        """
        for model, guards in self.by_model.items():
            if not has_token_columns(model):
                continue
            states = {(one.guard.field, one.guard.claim_as): one for one in guards if one.guard.field}
            for (field, state), _one in sorted(states.items(), key=repr):
                same = [one.guard for one in guards if one.guard.field == field]
                claiming = [one for one in guards if one.guard.field == field and one.guard.claim_as == state]
                if any(state in (one.done, one.failed) or (one.claim_as == state and one.done is None) for one in same):
                    continue
                where = Q(**{field: state, TOKEN: ""})
                for one in claiming:
                    where &= ~(one.guard.exclude or Q(pk__in=()))
                if not has_index(model, field) and (first := newest(model)) is not None:
                    where &= Q(pk__gt=first)
                yield model, where, any(one.takes(state) for one in same), claiming

    def resolve_guarded_row(self, record: Record) -> RowKey | None:
        """Return the key of the row that a lock names; ``None`` if its model has no guard."""
        named = resolve_row(record)
        return named if named is not None and named.model in self.by_model else None

    def read_rows(self, records: Iterable[Record]) -> dict[str, NamedRow]:
        """Return the rows that these locks name, keyed by ``Holder.row``; rows of unguarded models are left out."""
        named = {record.holder.row: key for record in records if (key := self.resolve_guarded_row(record)) is not None}
        keys: dict[tuple[type[Model], str], set[Any]] = {}
        for one in named.values():
            keys.setdefault((one.model, one.lookup), set()).add(one.key)
        rows: dict[RowKey, Row] = {}
        for (model, lookup), wanted in keys.items():
            columns = {*columns_of(self.by_model[model]), lookup} - {PK}
            for row in read(model, columns, list(wanted), lookup):
                rows[RowKey(model, lookup, row.pk if lookup == PK else row.values[lookup])] = row
        return {text: NamedRow(one.model, rows.get(one)) for text, one in named.items()}

    def find_guard(self, named_row: NamedRow, record: Record, task_of: Callable[[Any], Any]) -> Guarded | None:
        """Return the guard with which the holder of this lock claims its row; ``None`` if several may be meant."""
        return find_guard(record, named_row.row, self.by_model[named_row.model], task_of)


def _without_table(models: Iterable[type[Model]]) -> list[type[Model]]:
    """Return the models whose tables the schema of the present tenant lacks."""
    found: list[type[Model]] = []
    by_alias: dict[str, list[type[Model]]] = {}
    for model in models:
        by_alias.setdefault(router.db_for_write(model), []).append(model)
    for alias, group in by_alias.items():
        tables = connections[alias].introspection.table_names(include_views=True)
        found += [model for model in group if model._meta.db_table not in tables]
    return found


def find_claiming_guards(guards: list[Guarded], row: Row) -> list[Guarded]:
    """Return the guards whose claimed state the row has; or else those that give a row back like this; or else all."""
    claiming = [one for one in guards if row.claimed_by(one.guard)]
    giving_back = [one for one in guards if one.guard.field and row.values[one.guard.field] == one.guard.retry]
    return claiming or giving_back or guards


def claimable_state(guard: StateGuard, has_token: bool, *, published: bool) -> Any:
    """Return a claimable state for the row; ``None`` if every such state looks like a claimed one.

    A row with a token may have any, or none. A row without one, if claimable in its claimed state, would be found, and
    its task published, again and again.
    """
    if has_token or guard.retry != guard.claim_as:
        return guard.retry
    if not published:
        return None
    return next((state for state in guard.claim_from if state != guard.claim_as), None)
