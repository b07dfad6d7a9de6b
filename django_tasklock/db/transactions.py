"""Whose transaction is open."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.db.models import QuerySet

from django_tasklock.exceptions import TransactionOpen

logger = logging.getLogger("django_tasklock")

HINT = (
    "others would not see it until commit. Do it outside atomic(): publish the task with delay_on_commit, "
    "exempt the view from ATOMIC_REQUESTS, or do not run tasks eagerly inside a transaction"
)
"""Why a claim cannot be made there, and what to do."""


@contextmanager
def durable(using: str, what: str) -> Iterator[None]:
    """Enter ``atomic(durable=True)``, with ``TransactionOpen`` saying why ``what`` cannot be done in an open
    transaction.

    ``TestCase``, which wraps each test in a transaction of its own, is let through.
    """
    block = transaction.atomic(using=using, durable=True)
    try:
        block.__enter__()
    except RuntimeError as error:
        raise TransactionOpen(f"cannot {what} inside an open transaction: {HINT}") from error
    try:
        yield
    except BaseException as error:
        block.__exit__(type(error), error, error.__traceback__)
        raise
    block.__exit__(None, None, None)


def joined(connection: BaseDatabaseWrapper) -> bool:
    """Return whether a transaction of the caller's is open: not ours to commit, nor its connection ours to close."""
    if connection.in_atomic_block:
        return True
    if connection.connection is None:
        return not connection.settings_dict["AUTOCOMMIT"]
    return not connection.autocommit


_mentioned = False
_threads = threading.local()
"""``seen``: the connections made in a thread. To ask Django for them takes as long as a lock in memory does."""


def _note(sender: Any = None, connection: BaseDatabaseWrapper | None = None, **details: Any) -> None:
    seen = [one for one in _threads.__dict__.get("seen", ()) if one() not in (None, connection)]
    if connection is not None:
        seen.append(weakref.ref(connection))
    _threads.seen = seen


connection_created.connect(_note, dispatch_uid="tasklock.transactions")


def mention_uncommitted(name: str) -> None:
    """Say, once in a process, that a lock is free although the work that it was for is not committed yet.

    The transaction of a ``TestCase`` is none of the caller's. In the thread of an event loop there is none.
    """
    global _mentioned
    if _mentioned:
        return
    for one in _threads.__dict__.get("seen", ()):
        connection = one()
        if connection is None or not connection.in_atomic_block:
            continue
        if any(not getattr(block, "_from_testcase", False) for block in connection.atomic_blocks):
            _mentioned = True
            logger.warning(
                "lock %r was released inside of atomic() on database %r: who takes it next does not see what was"
                " written under it, and may overwrite it. Take the lock outside of atomic(), or release it with"
                " transaction.on_commit(lock.release). Said once in a process",
                name,
                connection.alias,
            )
            return


def forget() -> None:
    """Let ``mention_uncommitted`` say it once more."""
    global _mentioned
    _mentioned = False


def counts_changes(connection: BaseDatabaseWrapper) -> bool:
    """Return whether an UPDATE may answer with the rows it changed, not those it matched: MySQL without
    ``FOUND_ROWS``.
    """
    return connection.vendor == "mysql"


def unchanged(connection: BaseDatabaseWrapper, rows: QuerySet[Any]) -> bool:
    """Return whether an UPDATE of ``rows`` that answered zero may have found them as they should be.

    What an open transaction sees of them may be older than the UPDATE; a locking read is not.
    """
    if not counts_changes(connection):
        return False
    if joined(connection):
        rows = rows.select_for_update()
    return rows.values_list("pk").first() is not None
