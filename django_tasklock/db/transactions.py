"""Open transactions: whether there is one, and whether it is the caller's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from django_tasklock.exceptions import TransactionOpen

logger = logging.getLogger("django_tasklock")
View = TypeVar("View", bound=Callable[..., Any])

_HINT = (
    "others would not see it until commit, and a rollback would undo it. Do it outside of atomic(): publish the task"
    " with delay_on_commit, exempt the view from ATOMIC_REQUESTS (transaction.non_atomic_requests), or do not run tasks"
    " eagerly inside a transaction"
)


def outside_transactions(view: View) -> View:
    """Exempt a view from the ``ATOMIC_REQUESTS`` of every database, and return it."""
    for alias in connections:
        transaction.non_atomic_requests(alias)(view)
    return view


@contextmanager
def durable(using: str, what: str, name: str | None = None) -> Iterator[None]:
    """Enter ``atomic(durable=True)``. Raises ``TransactionOpen``, with the reason why ``what`` cannot be done, inside
    an open transaction, and with autocommit off. ``name``: of the lock.

    The transaction that ``TestCase`` opens around each test is accepted.
    """
    connection = connections[using]
    if in_callers_transaction(connection) and not connection.in_atomic_block:
        raise TransactionOpen(f"cannot {what} with autocommit off: {_HINT}", name=name)
    with ExitStack() as stack:
        try:
            stack.enter_context(transaction.atomic(using=using, durable=True))
        except RuntimeError as error:
            raise TransactionOpen(f"cannot {what} inside an open transaction: {_HINT}", name=name) from error
        yield


def in_callers_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Return whether the caller has an open transaction: then we must neither commit nor close the connection."""
    if connection.in_atomic_block:
        return True
    if connection.connection is None:
        return not connection.settings_dict["AUTOCOMMIT"]
    return not connection.autocommit


_of_test: list[BaseDatabaseWrapper] = []


@contextmanager
def known_as_test() -> Iterator[None]:
    """Take what this thread writes to databases, in this block, for what a test writes."""
    _of_test[:] = connections.all()
    try:
        yield
    finally:
        _of_test.clear()


def hidden_by_test(using: str) -> bool:
    """Return whether a test in another thread of this process keeps what it writes in the transaction of ``TestCase``.

    Nobody else sees it, and it is never committed.
    """
    return any(
        one.alias == using and one is not connections[using] and any(map(_is_of_testcase, one.atomic_blocks))
        for one in _of_test
    )


def _is_of_testcase(block: transaction.Atomic) -> bool:
    return bool(getattr(block, "_from_testcase", False))


_has_warned = False


def open_transactions() -> list[str]:
    """Return the aliases of the databases on which this thread is inside of ``atomic()``, ``TestCase``'s own aside."""
    return [
        one.alias
        for one in connections.all(initialized_only=True)
        if one.in_atomic_block and not all(map(_is_of_testcase, one.atomic_blocks))
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
            " written under it, and may overwrite it. Acquire the lock first, and enter atomic() inside of it; exempt a"
            " view from ATOMIC_REQUESTS for that. This warning is logged once per process",
            name,
            alias,
        )
        return


def forget() -> None:
    """Let ``warn_uncommitted`` warn once more."""
    global _has_warned
    _has_warned = False
