"""The rows that a function or a task processes, one in each call."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

from django.apps import apps
from django.db.models import Model

from django_tasklock.exceptions import TaskLockError
from django_tasklock.guards.guard import StateGuard
from django_tasklock.guards.keys import PK, check_key, key_field, key_text


class GuardedRow(NamedTuple):
    """The row that a call processes, by its key, and its guard."""

    model: type[Model]
    key: Any
    guard: StateGuard
    lookup: str = PK
    """The field that the key is of."""

    def __str__(self) -> str:
        """Return the row as holders record it: ``videos.video:42``, or ``videos.video.uid:6f1c``."""
        field = "" if self.lookup == PK else f".{self.lookup}"
        return f"{self.model._meta.label_lower}{field}:{key_text(self.key)}"


class GuardedRows(NamedTuple):
    """The rows that the calls of one function process."""

    model: type[Model] | str
    guard: StateGuard
    pk: str
    """The argument with the row's key."""
    lookup: str
    name: str
    """The template of the lock's name, where none is given."""

    @classmethod
    def of_function(
        cls,
        where: str,
        signature: inspect.Signature,
        model: type[Model] | str,
        guard: StateGuard,
        pk: str | None,
        lookup: str,
    ) -> GuardedRows:
        """Return the rows of a function with this signature. ``where``: its name, for messages.

        ``pk``: by default the first argument after ``self``. Raises ``TaskLockError`` if there is no such argument, or
        ``lookup`` is no unique field. A model that is given by its label is checked by tasklock.E004, and at each call.
        """
        known = [p.name for p in signature.parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        if pk is None:
            pk = next((name for name in known if name != "self"), "pk")
        if pk not in known:
            raise TaskLockError(f"pk={pk!r} is no argument of {where}; known: {', '.join(known) or 'none'}")
        if not isinstance(model, str):
            key_field(model, lookup)
        label = model.lower() if isinstance(model, str) else model._meta.label_lower
        return cls(model, guard, pk, lookup, f"{label}:{{{pk}}}")

    def of(self, arguments: Mapping[str, Any]) -> GuardedRow:
        """Return the row of a call with these arguments. Raises ``TaskLockError`` like ``check_key``."""
        model = apps.get_model(self.model) if isinstance(self.model, str) else self.model
        return GuardedRow(model, check_key(model, self.lookup, arguments[self.pk], self.pk), self.guard, self.lookup)
