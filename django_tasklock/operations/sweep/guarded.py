"""The guarded rows: which guard is whose, and what a row says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

from django.core.exceptions import ValidationError
from django.db.models import Model, Q

from django_tasklock.columns import TOKEN
from django_tasklock.exceptions import TaskLockError
from django_tasklock.guards.guard import Guarded, StateGuard, fenced, registered
from django_tasklock.guards.rows import Row, indexed, read
from django_tasklock.operations.guarded_rows import lock_name, model_of, row_key
from django_tasklock.operations.sweep.terms import SweepOptions
from django_tasklock.types import Record


class Side(NamedTuple):
    """The row that a lock names. ``row``: ``None`` if it is gone."""

    model: type[Model]
    pk: Any
    row: Row | None

    def __str__(self) -> str:
        return f"{self.model._meta.label_lower}:{self.pk}"


class Guards:
    """Every registered guard, by model."""

    def __init__(self, options: SweepOptions) -> None:
        self.entries: dict[type[Model], list[Guarded]] = {}
        self.unknown: list[str] = []
        known: set[str] = set()
        for one in registered():
            model = model_of(one)
            if model is None:
                self.unknown.append(str(one.model))
                continue
            known.add(model._meta.label_lower)
            if not options.models or model._meta.label_lower in options.models:
                self.entries.setdefault(model, []).append(one._replace(model=model))
        if unguarded := sorted(options.models - known):
            guarded = ", ".join(sorted(known)) or "none"
            raise TaskLockError(f"no guard is registered for {', '.join(unguarded)}; guarded: {guarded}")

    @cached_property
    def by_label(self) -> dict[str, type[Model]]:
        """The guarded models by their labels in lower case."""
        return {model._meta.label_lower: model for model in self.entries}

    def claims(self) -> Iterator[tuple[type[Model], str, Q, str, list[Guarded]]]:
        """Return (model, state column, which rows may be claimed, what to read them by, the guards that claim them).

        Of a model with tokens a claimed row has one, whatever state its body has moved it to: those of its guards are
        looked through, or all by an index of the tokens. Of others the state alone tells.
        """
        for model, entries in self.entries.items():
            groups: dict[str, list[Guarded]] = {}
            for one in entries:
                groups.setdefault(one.guard.field, []).append(one)
            if fenced(model) and TOKEN in indexed(model):
                yield model, entries[0].guard.field, Q(**{f"{TOKEN}__gt": ""}), TOKEN, entries
                continue
            for field, group in groups.items():
                states = {one.guard.claim_as for one in group}
                if fenced(model):
                    states.update(*(one.guard.claim_from for one in group))
                for state in sorted(states, key=repr):  # one at a time: the index has them in order of the keys
                    where = Q(**{field: state})
                    yield model, field, (where & ~Q(**{TOKEN: ""}) if fenced(model) else where), "pk", group

    def sides(self, records: Iterable[Record]) -> dict[str, Side]:
        """Return the rows that these locks name, by what ``Holder.row`` calls them; those of unknown models are left
        out.
        """
        wanted: dict[type[Model], dict[Any, str]] = {}
        for record in records:
            label, _, text = record.holder.row.partition(":")
            model = self.by_label.get(label)
            if model is None:
                continue
            try:
                wanted.setdefault(model, {})[row_key(model, text)] = record.holder.row
            except (ValidationError, ValueError, TypeError):
                continue  # of another model that had this label
        found: dict[str, Side] = {}
        for model, names in wanted.items():
            field = self.entries[model][0].guard.field
            rows = {row.pk: row for row in read(model, field, list(names))}
            found |= {name: Side(model, pk, rows.get(pk)) for pk, name in names.items()}
        return found

    def claimable(self, side: Side) -> bool:
        """Return whether a task may still claim the row, by its state."""
        row = side.row
        return row is not None and any(row.state in one.guard.claim_from for one in self.entries[side.model])

    def of(self, side: Side, record: Record, task_of: Callable[[Any], Any]) -> Guarded | None:
        """Return the guard by which the holder of this lock claims its row; ``None`` if several may be meant."""
        entries = self.entries[side.model]
        for chosen in (
            [one for one in entries if record.holder.task and _task_name(task_of(one.locked)) == record.holder.task],
            [one for one in entries if lock_name(one, side.pk) == record.name],
            [one for one in entries if side.row is not None and one.guard.claim_as == side.row.state],
            entries,
        ):
            if chosen and alike(chosen):
                return chosen[0]
        return None


def claiming(entries: list[Guarded], row: Row) -> list[Guarded]:
    """Return the guards by which the row may have been claimed: those that claim as it is, else any."""
    return [one for one in entries if one.guard.claim_as == row.state] or entries


def alike(entries: list[Guarded]) -> bool:
    """Return whether they put a row back in the same way."""
    return len({(one.guard.field, one.guard.claim_as, one.guard.retry) for one in entries}) == 1


def _task_name(task: Any) -> str:
    return str(getattr(task, "name", ""))


def put_back_to(guard: StateGuard, is_fenced: bool, *, published: bool) -> Any:
    """Return the state of a row that may be claimed again; ``None`` if there is none that tells it from a claimed one.

    A row with a token needs no other state. Without one, a row that may be claimed where it is would be found, and its
    task published, again and again.
    """
    if is_fenced or guard.retry != guard.claim_as:
        return guard.retry
    if not published:
        return None
    return next((state for state in guard.claim_from if state != guard.claim_as), None)
