"""Operations of a store in the database: choice of the database, retries, and translation of errors."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from typing import TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, Error, connections, router
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model

from django_tasklock.db.connections import release_connections
from django_tasklock.db.forks import no_fork_on
from django_tasklock.db.reconnect import errors_of, run_with_retries, serves_nobody
from django_tasklock.db.transactions import durable, in_callers_transaction
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.models import LockRow

T = TypeVar("T")


class Session:
    """Runs operations on the database that the routers choose for ``model``, one of this app's tables."""

    def __init__(self, model: type[Model] = LockRow, what: str = "lock") -> None:
        self.model = model
        self.what = what

    @property
    def alias(self) -> str:
        """The alias of the database with the table."""
        return router.db_for_write(self.model)

    def run(self, verb: Callable[[str, bool], T], *, name: str | None = None, write: bool = True) -> T:
        """Return ``verb(alias, again)``; ``again``: an earlier attempt may have been executed.

        Operations are safe to repeat; ``db.reconnect`` decides when they are retried. A connection that was taken from
        a pool for it is given back at once: those who wait for a lock would keep all of them from its holder.

        Raises ``TransactionOpen`` for a write in an open transaction, where its result would not be visible until the
        commit, ``BackendUnavailable`` if the database could not be asked, ``ImproperlyConfigured`` if the table is
        missing.
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
        idle = connection.connection is None

        def step(again: bool) -> T:
            with no_fork_on(connection), self._committing(connection, name) if write else nullcontext():
                return verb(alias, again)

        try:
            return run_with_retries(connection, step, f"the {self.what} table", refused=False)
        except errors_of(connection) as error:
            raise self._store_error(error, connection, name) from error
        finally:
            if idle and getattr(connection, "pool", None):
                release_connections(alias)

    def _committing(self, connection: BaseDatabaseWrapper, name: str | None) -> AbstractContextManager[None]:
        """Make sure that a statement is committed when it returns. The transaction of a ``TestCase`` is accepted."""
        if in_callers_transaction(connection):
            return durable(connection.alias, f"change the {self.what} table", name)
        return nullcontext()

    def _store_error(self, error: Exception, connection: BaseDatabaseWrapper, name: str | None) -> Exception:
        table = self.model._meta.db_table
        try:
            missing = connection.connection is not None and table not in connection.introspection.table_names()
        except Error:
            missing = False
        if missing:
            return ImproperlyConfigured(
                f"the {self.what} table {table!r} is missing in database {connection.alias!r}:"
                f" run {migrate_command(connection.alias)}"
            )
        text = f"the {self.what} database {connection.alias!r} could not be asked: {error}"
        return BackendUnavailable(text, name=name, down=serves_nobody(connection, error))


def migrate_command(alias: str) -> str:
    """Return the command that creates our tables in a database; only the default one need not be named."""
    named = "" if alias == DEFAULT_DB_ALIAS else f" --database={alias}"
    return f"manage.py migrate tasklock{named}"


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return not os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE")
