"""Checks whether guards fit their models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.apps import apps
from django.core import checks
from django.db.models import Model

from django_tasklock.celery.task_modules import import_task_modules
from django_tasklock.checks.settings import valid_settings
from django_tasklock.exceptions import TaskLockError
from django_tasklock.guards.guard import StateGuard, has_token_columns, registered, unfit
from django_tasklock.guards.keys import key_field


def check_guards(app_configs: Any = None, **kwargs: Any) -> list[checks.CheckMessage]:
    """Report E004: an unusable guard. W003: rows without token. W017: failed import."""
    if valid_settings() is None:
        return []  # tasks read the settings when they are bound: each would repeat what E001 says
    found: list[checks.CheckMessage] = [*_check_imports()]
    reported: set[tuple[str, str]] = set()
    for model_or_label, guard, _, _, lookup in registered():
        try:
            model = apps.get_model(model_or_label) if isinstance(model_or_label, str) else model_or_label
        except (LookupError, ValueError) as error:
            text = f"model_lock names {model_or_label!r}: {error}"
            found.append(checks.Error(text, hint="Use 'app_label.Model'.", id="tasklock.E004"))
            continue
        reasons = unfit(model, guard)
        try:
            key_field(model, lookup)
        except TaskLockError as error:
            reasons.append((str(error), ""))
        found += [checks.Error(text, hint=hint or None, obj=model, id="tasklock.E004") for text, hint in reasons]
        for message in _check_model(model, guard):
            if (model._meta.label, message.msg) not in reported:
                reported.add((model._meta.label, message.msg))
                found.append(message)
    return found


def _check_imports() -> Iterator[checks.CheckMessage]:
    for problem in import_task_modules():
        yield checks.Warning(
            f"Guards may be unknown to this process: {problem}.",
            hint="Mend the import. Until then their rows are neither checked nor swept from here, and a release goes by"
            " their token columns only.",
            id="tasklock.W017",
        )


def _check_model(model: type[Model], guard: StateGuard) -> Iterator[checks.CheckMessage]:
    label = model._meta.label
    if guard.field and not has_token_columns(model):
        yield checks.Warning(
            f"{label} is guarded by its state alone: a worker that lost its lock is refused"
            " only after its successor has finished.",
            hint="Add django_tasklock.models.GuardedModel to its bases and migrate. If its state must do, index it:"
            " a sweep finds claimed rows by it.",
            obj=model,
            id="tasklock.W003",
        )
