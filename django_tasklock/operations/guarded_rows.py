"""Find the guarded row that the holder of a lock works on, and the lock of a row."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from django.apps import apps
from django.core.exceptions import ValidationError
from django.db.models import Model

from django_tasklock.columns import table_model
from django_tasklock.exceptions import TaskLockError
from django_tasklock.guards.guard import Guarded, StateGuard, has_token_columns, registered
from django_tasklock.guards.keys import PK, parse_key
from django_tasklock.guards.rows import Row, columns_of, epoch_of, read
from django_tasklock.names import bare_name, each_of, other_tenant
from django_tasklock.operations.values import RowRef, RowSide
from django_tasklock.types import Record, fingerprint


class LockedRow(NamedTuple):
    """The row of a lock, and the guard that claims it."""

    model: type[Model]
    pk: Any
    """``None`` if the row does not exist."""
    guard: StateGuard | None
    """``None``: no guard is registered, or several of different columns; only for models with token columns."""
    row: Row | None
    """The row's values; ``None`` if the row does not exist."""
    states: list[Any]
    """The states that a release may leave the row in, the guard's default first. Empty without a guard."""


def row_ref(record: Record) -> RowRef | None:
    """Return the row that the holder of the lock has recorded in it."""
    model, colon, key = record.holder.row.partition(":")
    if not colon:
        return None
    lookup = PK
    if model.count(".") == 2:
        model, _, lookup = model.rpartition(".")
    return RowRef(model, key, lookup)


def model_of(guarded: Guarded) -> type[Model] | None:
    """Return the model of a guard; ``None`` if no such model is installed."""
    try:
        return apps.get_model(guarded.model) if isinstance(guarded.model, str) else guarded.model
    except (LookupError, ValueError):
        return None


def guards_of(model: type[Model]) -> list[Guarded]:
    """Return the guards registered for a model or its proxies, after importing the task modules."""
    from django_tasklock.celery.task_modules import import_task_modules

    import_task_modules()
    found = []
    for guarded in registered():
        guarded_model = model_of(guarded)
        if guarded_model is not None and table_model(guarded_model) is table_model(model):
            found.append(guarded)
    return found


class RowKey(NamedTuple):
    """The key of a row: the value of a unique field. ``model``: the one that has the table."""

    model: type[Model]
    lookup: str
    key: Any


def resolve_row(record: Record) -> RowKey | None:
    """Return the key of the row that a lock's holder works on.

    ``None`` if it is absent or invalid, or that of another tenant, in whose tables this process does not look.
    """
    ref = row_ref(record)
    if ref is None or other_tenant(record.name):
        return None
    try:
        model = table_model(apps.get_model(ref.model))
        return RowKey(model, ref.lookup, parse_key(model, ref.lookup, ref.pk))
    except (LookupError, ValueError, TypeError, ValidationError, RecursionError, TaskLockError):
        return None


def find_locked_row(record: Record) -> LockedRow | None:
    """Return the row of a lock with the guard that claims it; without the guard if it is ambiguous.

    ``None`` if the model has neither a guard nor token columns. Raises database errors.
    """
    from django_tasklock.celery.republish import Publisher

    resolved = resolve_row(record)
    if resolved is None:
        return None
    model, lookup, key = resolved
    guards = guards_of(model)
    if not guards and not has_token_columns(model):
        return None
    row = next(iter(read(model, columns_of(guards), [key], lookup)), None)
    pk = None if row is None else row.pk
    found = [one.guard for one in find_possible_guards(record, row, guards, Publisher().task_of)]
    if len({guard.field for guard in found}) != 1:
        return LockedRow(model, pk, None, row, []) if has_token_columns(model) else None
    return LockedRow(model, pk, found[0], row, states_after_release(found))


def find_guard(record: Record, row: Row | None, guards: list[Guarded], task_of: Callable[[Any], Any]) -> Guarded | None:
    """Return the guard with which the holder of this lock claims its row; ``None`` if several different ones fit.

    ``guards``: those of the row's model. ``task_of``: see ``Publisher``.
    """
    found = find_possible_guards(record, row, guards, task_of)
    return found[0] if found and are_equivalent(found) else None


def find_possible_guards(
    record: Record, row: Row | None, guards: list[Guarded], task_of: Callable[[Any], Any]
) -> list[Guarded]:
    """Return the ``guards`` with which the holder of this lock may have claimed its row.

    They are narrowed by the holder's task, then by the lock's name, then by the row's state, while they differ; a
    criterion that none of them meets is skipped.
    """

    def matches_task(one: Guarded) -> bool:
        task = record.holder.task
        return bool(task) and str(getattr(task_of(one.locked), "name", "")) == task

    def matches_name(one: Guarded) -> bool:
        return row is not None and lock_name(one, row.key_for(one)) == record.name

    def matches_state(one: Guarded) -> bool:
        return row is not None and row.claimed_by(one.guard)

    found = guards
    for matches in (matches_task, matches_name, matches_state):
        if are_equivalent(found):
            break
        found = [one for one in found if matches(one)] or found
    return found


def are_equivalent(guards: Iterable[Guarded]) -> bool:
    """Return whether these guards restore a row in the same way."""
    return len({(one.guard.field, one.guard.claim_as, one.guard.retry) for one in guards}) < 2


def lock_name(guarded: Guarded, key: Any) -> str | None:
    """Return the name of the lock for the row with this key; ``None`` if the name depends on more than the key."""
    locked = guarded.locked
    try:
        if isinstance(locked, type):  # a task class: its registered instance has the lock
            locked = locked.app.tasks[locked.name].lock  # type: ignore[attr-defined]
        fields = locked.template.fields
        if callable(locked.template.template):
            fields = locked.template.signature.parameters.keys()
        if set(fields) != {guarded.pk}:
            return None
        # the first of several names, all of which one holder has
        return bare_name(each_of(locked.name(**{guarded.pk: key}))[0])
    except Exception:  # a project's own callable may raise anything; the name is then unknown
        return None


def read_row_side(record: Record) -> RowSide | None:
    """Return the row of a lock for display; ``None``: neither a guard nor token columns. Raises database errors."""
    ref, found = row_ref(record), find_locked_row(record)
    if found is None or ref is None:
        return None
    guard, row = found.guard, found.row
    if row is not None and row.token is not None and record.token:
        agrees = row.token == record.token
    else:
        agrees = row is not None and guard is not None and row.claimed_by(guard)
    return RowSide(
        ref=ref,
        exists=row is not None,
        field=None if guard is None else guard.field,
        state=None if row is None or guard is None else row.values.get(guard.field),
        fingerprint=fingerprint("" if row is None else row.token or ""),
        epoch=epoch_of(found.model, found.pk),
        fenced=has_token_columns(found.model),
        agrees=agrees,
        states=found.states,
    )


def states_after_release(guards: list[StateGuard]) -> list[Any]:
    """Return the states that these guards of one column may leave a row in."""
    found: list[Any] = []
    for guard in guards:
        for state in (guard.retry, *guard.claim_from, guard.failed):
            if state is not None and state not in found:
                found.append(state)
    return found
