"""Open transactions: whether there is one, and whether it is the caller's."""

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
"""Why a claim cannot be made in a transaction, and what to do."""


@contextmanager
def durable(using: str, what: str) -> Iterator[None]:
    """Enter ``atomic(durable=True)``. Raises ``TransactionOpen``, with the reason why ``what`` cannot be done, inside
    an open transaction.

    The transaction that ``TestCase`` opens around each test is accepted.
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


def in_callers_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Return whether the caller has an open transaction: then we must neither commit nor close the connection."""
    if connection.in_atomic_block:
        return True
    if connection.connection is None:
        return not connection.settings_dict["AUTOCOMMIT"]
    return not connection.autocommit


_has_warned = False
_threads = threading.local()
"""``seen``: the connections opened in a thread. Asking Django for them takes as long as a lock in memory."""


def _record(sender: Any = None, connection: BaseDatabaseWrapper | None = None, **details: Any) -> None:
    seen = [one for one in _threads.__dict__.get("seen", ()) if one() not in (None, connection)]
    if connection is not None:
        seen.append(weakref.ref(connection))
    _threads.seen = seen


# On import, not in ready(): locks also warn without the app. ready() imports this module, so
# that connections opened before the first lock are known.
connection_created.connect(_record, dispatch_uid="tasklock.transactions")


def open_transactions() -> list[str]:
    """Return the aliases of the databases on which this thread is inside of ``atomic()``, ``TestCase``'s own aside."""
    connections = [one() for one in _threads.__dict__.get("seen", ())]
    return [
        one.alias
        for one in connections
        if one is not None
        and one.in_atomic_block
        and any(not getattr(block, "_from_testcase", False) for block in one.atomic_blocks)
    ]


def warn_uncommitted(name: str) -> None:
    """Warn, once per process, that a lock was released although the work under it is not committed yet.

    The thread of an event loop has no transactions.
    """
    global _has_warned
    if _has_warned:
        return
    for alias in open_transactions():
        _has_warned = True
        logger.warning(
            "lock %r was released inside of atomic() on database %r: its next holder does not see what was"
            " written under it, and may overwrite it. Acquire the lock outside of atomic(), or release it with"
            " transaction.on_commit(lock.release). This warning is logged once per process",
            name,
            alias,
        )
        return


def forget() -> None:
    """Let ``warn_uncommitted`` warn once more."""
    global _has_warned
    _has_warned = False


def counts_changes(connection: BaseDatabaseWrapper) -> bool:
    """Return whether an UPDATE may return the number of rows changed, not matched: MySQL without ``FOUND_ROWS``."""
    return connection.vendor == "mysql"


def unchanged(connection: BaseDatabaseWrapper, rows: QuerySet[Any]) -> bool:
    """Return whether an UPDATE of ``rows`` that returned zero may have found rows that already had the new values.

    In an open transaction a plain read may be older than the UPDATE; so a locking read is used there.
    """
    if not counts_changes(connection):
        return False
    if in_callers_transaction(connection):
        rows = rows.select_for_update()
    return rows.values_list("pk").first() is not None
