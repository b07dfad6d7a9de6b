"""System checks. Nothing here goes over the network. Documented in docs/checks.md."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.apps import apps
from django.conf import settings as django_settings
from django.core import checks
from django.core.exceptions import FieldDoesNotExist, ImproperlyConfigured
from django.db.models import Model

from django_tasklock.backends import get_backend, resolve
from django_tasklock.conf import get_settings, problems
from django_tasklock.guards import StateGuard, fenced, registered

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
    for model, guard in registered():
        if isinstance(model, str):
            try:
                model = apps.get_model(model)
            except (LookupError, ValueError) as error:
                found.append(checks.Error(f"model_lock names {model!r}: {error}", hint="Use 'app_label.Model'.", id="tasklock.E004"))
                continue
        found += _guard(model, guard)
        if not fenced(model) and model._meta.label not in unfenced:
            unfenced.add(model._meta.label)
            found.append(
                checks.Warning(
                    f"{model._meta.label} is guarded by its state alone: a worker that lost its lock is refused only after"
                    " its successor has finished.",
                    hint="Add django_tasklock.models.GuardedModel to its bases and migrate.",
                    obj=model,
                    id="tasklock.W003",
                )
            )
    return found


def _guard(model: type[Model], guard: StateGuard) -> Iterable[checks.CheckMessage]:
    names = [guard.field, *(["lock_token", "lock_epoch"] if fenced(model) else [])]
    for name in names:
        try:
            field = model._meta.get_field(name)
        except FieldDoesNotExist:
            yield checks.Error(f"The guard of {model._meta.label} names {name!r}, which is no field of it.", obj=model, id="tasklock.E004")
            continue
        if field not in model._meta.local_concrete_fields:
            yield checks.Error(
                f"{model._meta.label}.{name} is no column of its own table, so one UPDATE cannot judge it.",
                hint="Guard the model whose table has the column.",
                obj=model,
                id="tasklock.E004",
            )
