"""The actions of an operator on a kept message: requeue a dead one, publish one now, discard one.

Each returns the name of the message's lock, and the reason if nothing was done; ``None`` if there is no such message.
"""

from __future__ import annotations

from celery import current_app

from django_tasklock.backends import get_backend
from django_tasklock.celery.parking import store as parking
from django_tasklock.celery.parking.ending import revoke
from django_tasklock.celery.parking.envelope import UnusableMessage, check
from django_tasklock.celery.parking.listing import full_name
from django_tasklock.celery.parking.promotion import is_held, promote, promote_next
from django_tasklock.celery.parking.rows import DEAD, PARKED, PROMOTED


def requeue(task_id: str) -> tuple[str, str] | None:
    """Make a dead message wait for its lock again."""
    row = parking.find(task_id)
    if row is None:
        return None
    text = parking.read_message(row) or ""
    name = full_name(text, "")
    if row.state != DEAD:
        return name, f"it is not dead but {row.state}"
    try:
        check(text)
    except UnusableMessage as error:
        return name, str(error)
    if not parking.move_to(row, PARKED, attempts=0, problem=""):
        return name, "it has changed just now"
    promote(name, current_app)
    return name, ""


def publish(task_id: str) -> tuple[str, str] | None:
    """Publish a parked message if it is its turn.

    Messages that were published earlier and have not arrived are not waited for.
    """
    row = parking.find(task_id)
    if row is None:
        return None
    name = full_name(parking.read_message(row) or "", "")
    if row.state not in (PARKED, PROMOTED):
        return name, f"it is {row.state}"
    if is_held(name):
        return name, "its lock is held"
    if row.state == PARKED and row.mode == "queue":
        get_backend().count_before(name, row.number, forget=True)
    published = promote_next(row.key, current_app)
    now = parking.find(task_id)
    if now is None or now.sent > row.sent:
        return name, ""
    if published:
        return name, "another one was published: it was its turn"
    return name, "it is not its turn, or it could not be sent: see what it waits for, and the log"


def discard(task_id: str, why: str) -> tuple[str, str] | None:
    """End a parked or dead message as revoked."""
    row = parking.find(task_id)
    if row is None:
        return None
    name = full_name(parking.read_message(row) or "", "")
    if row.state not in (DEAD, PARKED):
        return name, f"it is {row.state}"
    return name, "" if revoke(row, current_app, why) else "it has changed just now"
