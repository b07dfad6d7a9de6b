"""System checks. Nothing here goes over the network. Documented in docs/checks.md."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.apps import apps
from django.conf import settings as django_settings
from django.core import checks
from django.core.exceptions import FieldDoesNotExist, FieldError, ImproperlyConfigured, ValidationError
from django.db.models import Model

from django_tasklock.backends import get_backend, resolve
from django_tasklock.conf import get_settings, problems
from django_tasklock.guards import EPOCH, TOKEN, StateGuard, fenced, registered

__all__ = ["check_backend", "check_guards", "check_settings", "register"]

TAG = "tasklock"


def register() -> None:
    """Register every check of this module."""
    for check in (check_settings, check_backend, check_guards):
        checks.register(check, TAG)


def check_settings(app_configs: Any = None, **kwargs: Any) -> list[checks.CheckMessage]:
    """E001: unknown or ill-typed key of ``TASKLOCK``."""
    given = getattr(django_settings, "TASKLOCK", {})
    return [checks.Error(what, hint=hint, id="tasklock.E001") for what, hint in problems(given)]


def check_backend(app_configs: Any = None, **kwargs: Any) -> list[checks.CheckMessage]:
    """E002: no such store. E003, W001: a cache that cannot lock, or not always. W002: only this process is locked."""
    try:
        settings = get_settings()
    except ImproperlyConfigured:
        return []  # E001 has said it
    try:
        path = resolve(settings)
        backend = get_backend()
    except ImproperlyConfigured as error:
        return [checks.Error(str(error), hint="See TASKLOCK in the settings.", id="tasklock.E002")]
    if path.endswith(".cache.CacheBackend"):
        from django_tasklock.backends.cache import weakness

        found = weakness(settings.LOCATION)
        if found is not None:
            level, text = found
            if level == "error":
                return [checks.Error(text, hint="Use Redis or the database backend.", id="tasklock.E003")]
            return [checks.Warning(text, hint="Use the database backend instead.", id="tasklock.W001")]
    if not backend.across_processes:
        return [
            checks.Warning(
                f"TASKLOCK['BACKEND'] {path!r} locks within one process only.",
                hint="Fine in tests. In production name Redis or the database.",
                id="tasklock.W002",
            )
        ]
    return []


def check_guards(app_configs: Any = None, **kwargs: Any) -> list[checks.CheckMessage]:
    """E004: a guard that cannot work. W003: a guarded model whose rows cannot refuse a stale worker."""
    found: list[checks.CheckMessage] = []
    unfenced: set[str] = set()
    for named, guard in registered():
        try:
            model = apps.get_model(named) if isinstance(named, str) else named
        except (LookupError, ValueError) as error:
            text = f"model_lock names {named!r}: {error}"
            found.append(checks.Error(text, hint="Use 'app_label.Model'.", id="tasklock.E004"))
            continue
        found += _guard(model, guard)
        if not fenced(model) and model._meta.label not in unfenced:
            unfenced.add(model._meta.label)
            found.append(
                checks.Warning(
                    f"{model._meta.label} is guarded by its state alone: a worker that lost its lock is refused"
                    " only after its successor has finished.",
                    hint="Add django_tasklock.models.GuardedModel to its bases and migrate.",
                    obj=model,
                    id="tasklock.W003",
                )
            )
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


def _table(model: type[Model]) -> Any:
    concrete = model._meta.concrete_model  # a proxy has no columns of its own
    return (concrete or model)._meta


def _unfit(model: type[Model], text: str, hint: str | None) -> checks.CheckMessage:
    return checks.Error(text, hint=hint, obj=model, id="tasklock.E004")
