"""A promoted message that reached a worker that cannot take it waits again, for another worker."""

from __future__ import annotations

import logging
import threading
from typing import Any

from django_tasklock.celery.message import HEADER
from django_tasklock.celery.parking import store as parking
from django_tasklock.celery.parking.ending import is_revoked, mark_dead, revoke
from django_tasklock.celery.parking.promotion import MOST_ATTEMPTS
from django_tasklock.celery.parking.rows import DOWN, PARKED, PROMOTED, close_idle
from django_tasklock.db.forks import no_fork

logger = logging.getLogger("django_tasklock")


def on_refused(sender: Any = None, message: Any = None, exc: Any = None, **details: Any) -> None:
    """Handle a promoted message that this worker cannot take (``task_unknown``, ``task_rejected``)."""
    headers = getattr(message, "headers", None) or {}
    our_header = headers.get(HEADER)
    if isinstance(our_header, dict) and our_header.get("put_back") and headers.get("id"):
        args = (str(headers["id"]), int(our_header["put_back"][0]), sender.app, exc)
        threading.Thread(target=_refused, args=args, name="tasklock-refused", daemon=True).start()


def _refused(task_id: str, sent: int, app: Any, error: Any) -> None:
    try:
        with no_fork():
            row = parking.find(task_id)
            if row is None or row.state != PROMOTED or row.sent != sent:
                return
            if is_revoked(task_id):
                revoke(row, app, "it was revoked")
            elif row.attempts >= MOST_ATTEMPTS:
                mark_dead(row, f"no worker takes it: {error!r}", app)
            elif parking.move_to(row, PARKED):
                logger.warning("parked message %s[%s]: this worker cannot take it: %r", row.task, task_id, error)
    except DOWN as trouble:
        logger.warning("parked message [%s] was not parked again, and will become overdue: %s", task_id, trouble)
    finally:
        with no_fork():
            close_idle()
