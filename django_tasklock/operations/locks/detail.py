"""Everything that is known about one name, held or not."""

from __future__ import annotations

import logging

from django.core.exceptions import ImproperlyConfigured
from django.db import Error

from django_tasklock.backends import get_backend
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.names import bare_name
from django_tasklock.operations.guarded_rows import read_row_side, row_ref
from django_tasklock.operations.locks.explanation import explain_lock
from django_tasklock.operations.locks.listing import count_parked_behind, lock_view
from django_tasklock.operations.trail import recent_acts
from django_tasklock.operations.values import LockDetail, LockView, RowSide
from django_tasklock.types import Record

logger = logging.getLogger("django_tasklock")

MAX_PARKED = 100
"""Parked messages listed per lock; all of them are counted."""


def get_lock(name: str) -> LockDetail:
    """Return all that is known about ``name``; ``detail.lock`` is ``None`` if the lock is neither held nor orphaned.

    If the database fails, its part is left out and a warning logged. Raises ``BackendUnavailable``, and
    ``TaskLockError`` for an invalid name.
    """
    from django_tasklock.celery import parked_messages

    bare = bare_name(name)
    record = get_backend().get(bare)
    orphaned = None if record is not None else get_backend().get_orphaned(bare)
    try:
        parked = parked_messages(bare, limit=MAX_PARKED)
    except (BackendUnavailable, ImproperlyConfigured) as error:
        logger.warning("lock %r: its parked messages could not be read: %s", bare, error)
        parked = []
    entry = record or orphaned
    waiting = sum(message.state in ("parked", "promoted") for message in parked)
    if len(parked) == MAX_PARKED:
        waiting = count_parked_behind([bare]).get(bare, waiting)
    lock = None if entry is None else lock_view(entry, waiting, entry is orphaned)
    row = None if record is None else _read_row(record)
    return LockDetail(bare, lock, explain_lock(entry, lock, row, waiting), row, parked, recent_acts(bare, "lock"))


def find_lock(name: str) -> LockView | None:
    """Return the lock if it is held, in one round trip, without counting messages. Raises as ``get_lock`` does."""
    record = get_backend().get(bare_name(name))
    return None if record is None else lock_view(record, 0)


def find_row(name: str) -> RowSide | None:
    """Return the guarded row of the lock ``name``, without the rest of ``get_lock``. Raises as ``get_lock`` does."""
    bare = bare_name(name)
    record = get_backend().get(bare)
    return None if record is None else _read_row(record)


def _read_row(record: Record) -> RowSide | None:
    try:
        return read_row_side(record)
    except Error as error:
        logger.warning("lock %r: its row %s could not be read: %s", record.name, row_ref(record), error)
        return None
