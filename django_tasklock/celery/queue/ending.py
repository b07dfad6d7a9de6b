"""Reading parked messages, and ending them without a run."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from celery.app.task import Context
from celery.canvas import Signature, signature as signature_of
from celery.exceptions import TaskRevokedError

from django_tasklock.backends.database.names import in_ascii, key_of
from django_tasklock.celery import rates
from django_tasklock.celery.canvas import end_without_run, links_of_skipped
from django_tasklock.celery.message import HEADER
from django_tasklock.celery.queue import line, rows
from django_tasklock.celery.queue.envelope import UnusableMessage, check, read, unseal
from django_tasklock.celery.queue.rows import DEAD, PROMOTED, REPLACED, Row
from django_tasklock.celery.unique import release_unique

logger = logging.getLogger("django_tasklock")


class DueMessage(NamedTuple):
    """A parked message that was read and may be put back into the broker."""

    row: Row
    name: str
    signature: Signature[Any]


def open_row(row: Row, app: Any) -> DueMessage:
    """Read the message of a row. Raises ``UnusableMessage``."""
    name, signature = unseal(row.message, app)
    _check_row(name, signature, row)
    return DueMessage(row, name, signature)


def is_revoked(task_id: str) -> bool:
    """Return whether this worker has received a revocation of the task."""
    from celery.worker import state

    return task_id in state.revoked


def mark_dead(row: Row, reason: str, app: Any) -> None:
    """Mark a message as dead, until an operator decides. A revoked message is removed instead.

    It then delays neither its queue nor the publication of a similar message (``unique``).
    """
    if is_revoked(row.task_id):
        revoke(row, app, "it was revoked")
        return
    if rows.move(row, DEAD, problem=in_ascii(reason), place=None):
        logger.error("parked message %s[%s] is dead: %s", row.task, row.task_id, reason)
        _leave(row, app)


def revoke(row: Row, app: Any, reason: str) -> bool:
    """Remove a message and store that it is revoked, so that no caller waits for it. Return whether it existed."""
    if not rows.remove_unchanged(row):
        return False
    logger.warning("parked message %s[%s] is discarded: %s", row.task, row.task_id, reason)
    request = _leave(row, app)
    rates.pass_on(app, [request] if request else [])
    try:
        check(row.message)
        request = request or Context(id=row.task_id, task=row.task)
        end_without_run(_backend_of(row, app), request, TaskRevokedError(reason))
    except UnusableMessage:
        pass  # a forged row may name the result of another task
    except Exception as error:
        logger.warning("%s[%s]: the state REVOKED was not stored: %s", row.task, row.task_id, error)
    return True


def end_replaced(older: list[Row], app: Any, heir: Any = None) -> dict[str, Any]:
    """End ``coalesce`` messages that a newer one has replaced: store their result, then delete their rows.

    If that fails, or this process is killed meanwhile, a promoter ends them when they are overdue. ``heir``: the
    request of the newer message, if it is about to start. Return what of their reservations is to be in its header.
    """
    ended = []
    for row in older:
        try:
            name, signature = read(row.message, app)
            _check_row(name, signature, row)
        except UnusableMessage as error:
            logger.warning("parked message %s[%s] was replaced, and cannot be read: %s", row.task, row.task_id, error)
            continue
        # A copy that is on its way, or about to start, does not have the new number, and is discarded as a duplicate.
        if not rows.move(row, PROMOTED, sent=row.sent + 1, attempts=row.attempts + 1, mode=REPLACED, place=None):
            continue  # it has started, or somebody else ends it
        ended.append(request_of(row, signature))
        logger.info("lock %r: %s[%s] is replaced by a newer message", name, row.task, row.task_id)
        try:
            _store_skipped(row, name, signature, app)
        except Exception as error:
            logger.warning("%s[%s] was replaced, and its result is stored later: %r", row.task, row.task_id, error)
            continue
        rows.remove(row.task_id)
        _leave(row, app)
    return rates.pass_on(app, ended, heir)


def _store_skipped(row: Row, name: str, signature: Signature[Any], app: Any) -> None:
    """Do what a worker does after a skip, in its order: call the links, continue the chain, store the result."""
    result = {"status": "skipped", "reason": "coalesced", "name": name}
    sent, request = signature.options, request_of(row, signature)
    root = sent.get("root_id") or row.task_id
    family: dict[str, Any] = {"parent_id": row.task_id, "root_id": root, "add_to_parent": False}
    for link in links_of_skipped(request):
        signature_of(dict(link), app=app).apply_async((result,), **family)
    if rest := list(sent.get("chain") or ()):
        signature_of(rest.pop(), app=app).apply_async((result,), chain=rest, **family)
    _backend_of(row, app).mark_as_done(row.task_id, result, request=request)


def _backend_of(row: Row, app: Any) -> Any:
    return getattr(app.tasks.get(row.task), "backend", app.backend)


def _leave(row: Row, app: Any) -> Context | None:
    """Leave the line and release the ``unique`` lock. Return the request for the result backend, if it can be read."""
    try:
        name, signature = read(row.message, app)
        _check_row(name, signature, row)
    except UnusableMessage:
        return None
    line.leave(name, row.task_id)
    release_unique((signature.options.get("headers") or {}).get(HEADER) or {}, row.task_id)
    return request_of(row, signature)


def request_of(row: Row, signature: Signature[Any]) -> Context:
    """Return what of a message's request a result backend reads, and its headers."""
    sent = signature.options
    return Context(
        id=row.task_id,
        task=row.task,
        args=signature.args,
        kwargs=signature.kwargs,
        chain=sent.get("chain"),
        callbacks=sent.get("link"),
        chord=sent.get("chord"),
        group=sent.get("group_id"),
        group_index=sent.get("group_index"),
        ignore_result=sent.get("ignore_result", False),
        reply_to=sent.get("reply_to"),
        headers=sent.get("headers") or {},
        retries=sent.get("retries") or 0,
    )


def _check_row(name: str, signature: Signature[Any], row: Row) -> None:
    if key_of(name) != row.key or signature.options.get("task_id") != row.task_id:
        raise UnusableMessage("its message is that of another row")
