"""Running one verb against the database: where, how often, and what an error means."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import copy_context
from typing import Any, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.db import Error, connections, router, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model

from django_tasklock.exceptions import BackendUnavailable, TransactionOpen
from django_tasklock.models import LockRow

T = TypeVar("T")

PATIENCE = 2.0
"""Seconds during which a deadlock, a serialization failure or a locked SQLite file is tried again."""

POOLED = 100  # dead connections out of a pool that are passed over

_SQLSTATES = frozenset({"40001", "40P01", "55P03"})  # serialization failure, deadlock, lock not available
_MYSQL_CODES = frozenset({1020, 1205, 1213})  # record changed, lock wait timeout, deadlock
_SQLITE_CODES = frozenset({5, 6})  # busy, locked


class Session:
    """Takes a verb to the database that the routers name for ``model``, one of this app's tables."""

    def __init__(self, model: type[Model] = LockRow, what: str = "lock") -> None:
        self.model = model
        self.what = what

    @property
    def alias(self) -> str:
        """The database the table is in."""
        return router.db_for_write(self.model)

    def run(self, verb: Callable[[str, bool], T], *, name: str | None = None, write: bool = True) -> T:
        """``verb(alias, again)``; ``again``: an earlier try may have been executed, its reply was lost.

        Verbs are safe to repeat. One that writes is refused with ``TransactionOpen`` where
        others would not see the result until commit. ``BackendUnavailable`` when the
        database could not be asked, ``ImproperlyConfigured`` when the table is missing.
        """
        alias = self.alias
        if not _in_event_loop():
            return self._try(alias, verb, name, write)
        with ThreadPoolExecutor(1) as helper:  # Django refuses the ORM in the thread of an event loop
            return helper.submit(copy_context().run, self._try_and_close, alias, verb, name, write).result()

    def close_idle(self) -> None:
        """Close this thread's connection, unless a transaction is open on it."""
        connection = connections[self.alias]
        if not connection.in_atomic_block:
            connection.close()

    def _try_and_close(self, alias: str, verb: Callable[[str, bool], T], name: str | None, write: bool) -> T:
        try:
            return self._try(alias, verb, name, write)
        finally:
            connections[alias].close()

    def _try(self, alias: str, verb: Callable[[str, bool], T], name: str | None, write: bool) -> T:
        connection = connections[alias]
        patience = time.monotonic() + PATIENCE
        dropped = 0
        while True:
            # A pool gives what it has without a look: after a restart of the server all that is in it is dead.
            pooled = bool(getattr(connection, "pool", None))
            was_open = connection.connection is not None
            try:
                with _committing(connection, name) if write else nullcontext():
                    return verb(alias, dropped > 0)
            except _errors(connection) as error:
                if (was_open or pooled) and dropped < (POOLED if pooled else 1) and _unusable(connection):
                    dropped += 1
                    connection.close()
                elif _passing(error) and time.monotonic() < patience:
                    time.sleep(random.uniform(0.001, 0.05))
                else:
                    raise self._explained(error, connection, name) from error

    def _explained(self, error: Exception, connection: BaseDatabaseWrapper, name: str | None) -> Exception:
        table = self.model._meta.db_table
        try:
            missing = connection.connection is not None and table not in connection.introspection.table_names()
        except Error:
            missing = False
        if missing:
            return ImproperlyConfigured(
                f"the {self.what} table {table!r} is missing in database {connection.alias!r}:"
                " run manage.py migrate tasklock"
            )
        text = f"the {self.what} database {connection.alias!r} could not be asked: {error}"
        return BackendUnavailable(text, name=name)


@contextmanager
def _committing(connection: BaseDatabaseWrapper, name: str | None) -> Iterator[None]:
    """A place where a statement is committed when it returns. The block of a ``TestCase`` counts as one."""
    if not connection.in_atomic_block:
        if not connection.get_autocommit():
            raise _refused("autocommit is off", name)
        yield
        return
    with ExitStack() as stack:
        try:
            stack.enter_context(transaction.atomic(using=connection.alias, durable=True))
        except RuntimeError as error:
            raise _refused("a transaction is open", name) from error
        yield


def _refused(why: str, name: str | None) -> TransactionOpen:
    return TransactionOpen(
        f"{why}: others would not see the lock change before the commit, and a rollback would undo it."
        " Take and release the lock outside of atomic() (with ATOMIC_REQUESTS: transaction.non_atomic_requests),"
        " or publish the task with transaction.on_commit()",
        name=name,
    )


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return not os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE")


def _errors(connection: Any) -> tuple[type[Exception], ...]:
    # While it deals with an error Django may let one of the driver's own through.
    return Error, connection.Database.Error


def _unusable(connection: BaseDatabaseWrapper) -> bool:
    return connection.connection is not None and not connection.in_atomic_block and not connection.is_usable()


def _passing(error: Exception) -> bool:
    """Whether another try may simply succeed."""
    cause = error.__cause__
    state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    if state is not None:
        return state in _SQLSTATES
    code = getattr(cause, "sqlite_errorcode", None)
    if code is not None:
        return code & 0xFF in _SQLITE_CODES
    return cause is not None and bool(cause.args) and cause.args[0] in _MYSQL_CODES
