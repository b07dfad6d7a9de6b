"""Reading kept messages, and ending them without a run."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from celery.app.task import Context
from celery.canvas import Signature

from django_tasklock.backends.database.names import in_ascii, key_of
from django_tasklock.celery.message import HEADER
from django_tasklock.celery.parking import order, store as parking
from django_tasklock.celery.parking.envelope import UnusableMessage, check, read, unseal
from django_tasklock.celery.parking.rows import DEAD, ParkedRow
from django_tasklock.celery.unique import release_unique

logger = logging.getLogger("django_tasklock")


class DueMessage(NamedTuple):
    """A kept message that was read and may be put back into the broker."""

    row: ParkedRow
    name: str
    signature: Signature[Any]


def open_row(row: ParkedRow, app: Any) -> DueMessage | None:
    """Read the message of a row. Return ``None`` if the row is gone. Raises ``UnusableMessage``."""
    text = parking.read_message(row)
    if text is None:
        return None
    name, signature = unseal(text, app)
    if not _matches(name, signature, row):
        raise UnusableMessage("its message is that of another row")
    return DueMessage(row, name, signature)


def mark_dead(row: ParkedRow, reason: str, app: Any) -> None:
    """Mark a message as dead, until an operator decides. A revoked message is removed instead.

    It then delays neither its line nor the publication of a similar message (``unique``).
    """
    if is_revoked(row.task_id):
        revoke(row, app, "it was revoked")
        return
    text = parking.read_message(row)
    problem = in_ascii(reason)
    if text is not None and parking.move_to(row, DEAD, problem=problem, place=None):
        logger.error("parked message %s[%s] is dead: %s", row.task, row.task_id, reason)
        _leave_line(row, text, app)


def revoke(row: ParkedRow, app: Any, reason: str) -> bool:
    """Remove a message and store that it is revoked, so that no caller waits for it. Return whether it existed."""
    text = parking.read_message(row)
    if text is None or not parking.remove_unchanged(row):
        return False
    logger.warning("parked message %s[%s] is discarded: %s", row.task, row.task_id, reason)
    request = _leave_line(row, text, app)
    try:
        check(text)
        app.backend.mark_as_revoked(row.task_id, reason, request=request)
    except UnusableMessage:
        pass  # a forged row may name the result of another task
    except Exception as error:
        logger.warning("%s[%s]: the state REVOKED was not stored: %s", row.task, row.task_id, error)
    return True


def is_revoked(task_id: str) -> bool:
    """Return whether this worker has received a revocation of the task."""
    from celery.worker import state

    return task_id in state.revoked


def _leave_line(row: ParkedRow, text: str, app: Any) -> Context | None:
    """Leave the line and release the ``unique`` lock. Return the request for the result backend, if it can be read."""
    try:
        name, signature = read(text, app)
    except UnusableMessage:
        return None
    if not _matches(name, signature, row):
        return None
    sent = signature.options
    order.leave(name, row.task_id)
    release_unique((sent.get("headers") or {}).get(HEADER) or {}, row.task_id)
    return Context(
        id=row.task_id,
        task=row.task,
        chord=sent.get("chord"),
        group=sent.get("group_id"),
        group_index=sent.get("group_index"),
    )


def _matches(name: str, signature: Signature[Any], row: ParkedRow) -> bool:
    return key_of(name) == row.key and signature.options.get("task_id") == row.task_id
