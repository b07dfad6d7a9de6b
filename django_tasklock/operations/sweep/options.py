"""The checked arguments of a sweep."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from django.apps import apps
from django.db.models import Model

from django_tasklock.columns import table_model
from django_tasklock.conf import Duration, get_settings, milliseconds
from django_tasklock.exceptions import TaskLockError
from django_tasklock.names import other_tenant, strip_prefix
from django_tasklock.operations.guarded_rows import row_ref
from django_tasklock.operations.values import Actor
from django_tasklock.rates.notation import microseconds
from django_tasklock.types import Record, monotonic

MAX_SECONDS_IN_REQUEST = 25.0
"""Seconds for a sweep inside a web request: web servers abort requests after thirty."""


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """The arguments of ``sweep()``, checked."""

    dry_run: bool
    age: int | None
    """Milliseconds that a lock must have been held."""
    prefix: str
    models: frozenset[type[Model]]
    """The models that have the tables, not their proxies. Empty: all."""
    requeue: bool
    by: Actor
    pause: float
    deadline: float | None = None
    """The deadline on the monotonic clock, after which nothing more is checked; ``None``: no deadline."""
    unclaimed: bool = False
    """Whether rows in a claimed state that nobody has claimed are restored."""

    @classmethod
    def from_arguments(
        cls,
        dry_run: bool,
        older_than: Duration | None,
        prefix: str,
        models: Iterable[type[Model] | str],
        requeue: bool,
        by: Actor,
        pause: Duration,
        longest: Duration | None = None,
        unclaimed: bool = False,
    ) -> Self:
        """Check the arguments and return the options. Raises ``TaskLockError`` for invalid ones."""
        tables = set()
        for model in models:
            try:
                tables.add(table_model(apps.get_model(model) if isinstance(model, str) else model))
            except (LookupError, ValueError) as error:
                raise TaskLockError(f"there is no model {model!r}: {error}") from error
        return cls(
            dry_run=dry_run,
            age=None if older_than is None else milliseconds(older_than, "older_than"),
            prefix=strip_prefix(prefix, get_settings().prefix),
            models=frozenset(tables),
            requeue=requeue,
            by=by,
            pause=microseconds(pause, "pause", zero=True) / 1_000_000,
            deadline=None if longest is None else monotonic() + microseconds(longest, "longest", zero=True) / 1_000_000,
            unclaimed=unclaimed,
        )

    @property
    def is_complete(self) -> bool:
        """Whether everything is swept."""
        return not (self.models or self.prefix or self.age)

    @property
    def timed_out(self) -> bool:
        """Whether the deadline has passed."""
        return self.deadline is not None and monotonic() > self.deadline

    def matches(self, record: Record) -> bool:
        """Return whether a held lock matches the prefix, models and age, and its row is not another tenant's."""
        if not record.name.startswith(self.prefix) or (record.holder.row and other_tenant(record.name)):
            return False
        if self.models and not self._names_selected_model(record):
            return False
        return self.age is None or (bool(record.token) and record.now - record.at >= self.age)

    def _names_selected_model(self, record: Record) -> bool:
        ref = row_ref(record)
        try:
            return ref is not None and table_model(apps.get_model(ref.model)) in self.models
        except (LookupError, ValueError):
            return False
