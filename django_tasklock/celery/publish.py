"""Our header of a message, as it is written on publication, and the warning for what is published too early."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from celery import current_app
from django.apps import apps
from django.db import router
from django.db.models import Model

from django_tasklock.celery.definition import lock_of
from django_tasklock.celery.delivery.cleanup import lock_name
from django_tasklock.celery.message import (
    DIED,
    HEADER,
    LINE,
    bind_header,
    header_of,
    is_header_for,
    predecessor_request,
    tenant_header,
)
from django_tasklock.celery.queue import line
from django_tasklock.celery.rates import RATE, pop_published_reservation
from django_tasklock.conf import get_settings
from django_tasklock.db.transactions import open_transactions
from django_tasklock.guards.guard import registered

logger = logging.getLogger("django_tasklock")

_warned: set[str] = set()


def write_header(sender: Any = None, headers: Any = None, body: Any = None, **details: Any) -> None:
    """Write our header of a message on publication (``before_task_publish``).

    For a task with ``queue`` or ``coalesce``, also draw its sequence number.
    """
    task = current_app.tasks.get(sender)
    locked = None if task is None else lock_of(task)
    reservation = pop_published_reservation()
    if not isinstance(headers, dict):
        return
    fields = body if isinstance(body, dict) else headers  # Celery's own fields: with protocol 1 they are in the body
    predecessor = predecessor_request(sender, fields.get("id"))
    nesting = fields.get("replaced_task_nesting") or 0
    # Whether it is the next page of a task that replaces itself, and not only the same message again.
    is_page = predecessor is not None and nesting > (predecessor.replaced_task_nesting or 0)
    header: Any = headers.pop(HEADER, None)
    if not is_header_for(header, sender, fields.get("id")):
        header = {} if predecessor is None or is_page else header_of(predecessor)
    if locked is not None and not header:
        header = tenant_header()
    if locked is None and reservation is None and not header:
        return
    header = headers[HEADER] = bind_header(header, sender, fields.get("id"))
    if (died := headers.pop(DIED, None)) is not None:
        header[DIED] = died
    if reservation is not None:
        header[RATE] = reservation
    if task is not None and "at" not in header and not fields.get("eta"):  # not if it is sent again, or due later
        warn_uncommitted(task, header)
    retries = fields.get("retries") or 0
    if task is not None and _overtakes_row(task):
        header["uncommitted"] = retries
    if (header.get("at") or (0, -1))[1] != retries:
        header["at"] = (time.time(), retries)
    if is_page:
        header["page"] = True
    on_conflict = header.pop(LINE, None)
    if locked is not None:
        on_conflict = locked.on_conflict or get_settings().ON_CONFLICT
    if on_conflict in ("queue", "coalesce") and "number" not in header:
        args, kwargs = (body["args"], body["kwargs"]) if fields is body else (body or ((), {}))[:2]
        name = lock_name(task, header, args, kwargs) or ""
        before = {} if predecessor is None else header_of(predecessor)
        if "number" in before and name == lock_name(task, before, predecessor.args or (), predecessor.kwargs or {}):
            header["number"] = before["number"]  # the next page has the place of the page before
        elif on_conflict == "coalesce" or fields.get("eta"):  # what is not due yet must not delay the others
            header["number"] = line.next_number()
        else:
            header["number"] = line.next_number(name, fields["id"] if name else "")


def warn_uncommitted(task: Any, header: Mapping[str, Any]) -> None:
    """Warn, once per process and task, that a message of ``task`` is published inside of ``atomic()``.

    ``header``: our header of the message. A guarded task is judged by the database of its rows, a ``unique`` one by
    all.
    """
    if task.name in _warned or not open_transactions():
        return
    if _overtakes_row(task):
        harm = "a worker that gets the message before the commit does not find its row, or finds its former state"
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


def _overtakes_row(task: Any) -> bool:
    """Return whether a message of ``task`` may arrive before the commit of its guarded row."""
    if not (databases := open_transactions()):
        return False
    model = _guarded_model(task)
    return model is not None and router.db_for_write(model) in databases


def _guarded_model(task: Any) -> type[Model] | None:
    locked = lock_of(task) or type(task)
    model = next((one.model for one in registered() if one.locked is locked), None)
    return apps.get_model(model) if isinstance(model, str) else model
