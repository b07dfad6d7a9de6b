"""From a lock to the guarded row that its holder works on, and back."""

from __future__ import annotations

from typing import Any, NamedTuple

from django.apps import apps
from django.core.exceptions import ValidationError
from django.db.models import Model

from django_tasklock.columns import TOKEN
from django_tasklock.conf import get_settings
from django_tasklock.guards.guard import Guarded, StateGuard, fenced, registered
from django_tasklock.guards.rows import epoch_of, read
from django_tasklock.names import clean, each_of
from django_tasklock.operations.values import RowRef, RowSide
from django_tasklock.types import Record, fingerprint


class LockedRow(NamedTuple):
    """The row of a lock, and its guard. ``None``: none is known here, only the columns of ``GuardedModel``."""

    model: type[Model]
    pk: Any
    guard: StateGuard | None


def row_ref(record: Record) -> RowRef | None:
    """Return the guarded row that a lock's holder says it works on."""
    model, colon, pk = record.holder.row.partition(":")
    return RowRef(model, pk) if colon else None


def model_of(guarded: Guarded) -> type[Model] | None:
    """Return a guard's model; ``None`` if there is none of that name."""
    try:
        return apps.get_model(guarded.model) if isinstance(guarded.model, str) else guarded.model
    except (LookupError, ValueError):
        return None


def guards_of(label: str) -> list[Guarded]:
    """Return the guards in use on the model with this label, ``videos.video``: those in task modules too."""
    from django_tasklock.celery.task_modules import import_task_modules

    import_task_modules()
    found = []
    for guarded in registered():
        model = model_of(guarded)
        if model is not None and model._meta.label_lower == label:
            found.append(guarded)
    return found


def row_key(model: type[Model], text: str) -> Any:
    """Return a primary key from its text. Raises ``ValidationError``, ``ValueError`` or ``TypeError`` if there can be
    none.
    """
    field: Any = model._meta.pk
    while field.remote_field:  # a parent's
        field = field.target_field
    key = field.to_python(text)
    field.run_validators(key)  # a number may be more than its column can have
    return key


def row_of(name: str, ref: RowRef | None) -> LockedRow | None:
    """Return the row of a lock, with the guard whose lock has that name, if there are several on its model.

    ``None`` where neither a guard nor columns of its model could judge it.
    """
    if ref is None:
        return None
    guards = guards_of(ref.model)
    try:
        model = apps.get_model(ref.model)
        pk = row_key(model, ref.pk)
    except (LookupError, ValueError, TypeError, ValidationError):
        return None
    for guarded in guards:
        if lock_name(guarded, pk) == name:
            return LockedRow(model, pk, guarded.guard)
    if guards:
        return LockedRow(model, pk, guards[0].guard)
    return LockedRow(model, pk, None) if fenced(model) else None


def lock_name(guarded: Guarded, pk: Any) -> str | None:
    """Return the name of the lock that goes with a row; ``None`` if it depends on more than the primary key."""
    locked = guarded.locked
    try:
        if isinstance(locked, type):  # a task's class: the task itself knows
            locked = locked.app.tasks[locked.name].lock  # type: ignore[attr-defined]
        fields = locked.template.fields
        if callable(locked.template.template):
            fields = locked.template.signature.parameters.keys()
        if set(fields) != {guarded.pk}:
            return None
        # Of several names, which one holder has all of, the first.
        return clean(each_of(locked.name(**{guarded.pk: pk}))[0], get_settings().KEY_PREFIX)
    except Exception:  # a project's own callable: whatever it raises, its name is not known
        return None


def row_side(name: str, ref: RowRef | None, token: str) -> RowSide | None:
    """Return what the row says, beside the lock with ``token``; ``None``: nothing could judge it. Raises database
    errors.
    """
    row = row_of(name, ref)
    if row is None or ref is None:
        return None
    has_token, field = fenced(row.model), "" if row.guard is None else row.guard.field
    seen = next(iter(read(row.model, field or TOKEN, [row.pk])), None)
    row_token = None if seen is None else seen.token
    state = seen.state if seen is not None and field else None
    return RowSide(
        ref=ref,
        exists=seen is not None,
        field=field,
        state=state,
        fingerprint=fingerprint(row_token or ""),
        epoch=epoch_of(row.model, row.pk),
        fenced=has_token,
        agrees=row_token == token if has_token and token else row.guard is not None and state == row.guard.claim_as,
        states=states_after(row.guard),
    )


def states_after(guard: StateGuard | None) -> list[Any]:
    """Return what a row may be left in when its lock is taken away: the guard's own choice first. None without a
    guard.
    """
    if guard is None:
        return []
    found = [guard.retry]
    for state in (*guard.claim_from, guard.failed):
        if state is not None and state not in found:
            found.append(state)
    return found
