"""The warning for messages of guarded and ``unique`` tasks that are published before their transaction is committed."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from django.apps import apps
from django.db import router
from django.db.models import Model

from django_tasklock.celery.definition import lock_of
from django_tasklock.db.transactions import open_transactions
from django_tasklock.guards.guard import registered

logger = logging.getLogger("django_tasklock")

_warned: set[str] = set()


def warn_uncommitted(task: Any, header: Mapping[str, Any]) -> None:
    """Warn, once per process and task, that a message of ``task`` is published inside of ``atomic()``.

    ``header``: our header of the message. A guarded task is judged by the database of its rows, a ``unique`` one by
    all.
    """
    if task.name in _warned or not (databases := open_transactions()):
        return
    model = _guarded_model(task)
    if model is not None and router.db_for_write(model) in databases:
        harm = "a worker that gets the message before the commit does not find its row"
    elif "unique" in header:
        harm = "a worker may run it before the commit, and after a rollback as well"
    else:
        return
    _warned.add(task.name)
    logger.warning(
        "%s was published inside of atomic(): %s. Publish it with delay_on_commit(), or in transaction.on_commit()."
        " This warning is logged once per process and task",
        task.name,
        harm,
    )


def forget() -> None:
    """Let ``warn_uncommitted`` warn of each task once more."""
    _warned.clear()


def _guarded_model(task: Any) -> type[Model] | None:
    locked = lock_of(task) or type(task)
    model = next((one.model for one in registered() if one.locked is locked), None)
    return apps.get_model(model) if isinstance(model, str) else model
