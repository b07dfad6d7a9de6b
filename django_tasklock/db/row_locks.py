"""How long a write waits for a row that another transaction has locked.

By default PostgreSQL waits for as long as that transaction is open, and MySQL for 50 seconds. SQLite waits for the
``timeout`` of its settings.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import BooleanField, Func, QuerySet

from django_tasklock.db.reconnect import errors_of

LOCK_WAIT = 2
"""Seconds that a claim, or one attempt of another write, waits for a row lock. MySQL takes whole seconds."""


class _SetLockTimeout(Func):
    """A ``SET LOCAL lock_timeout`` that takes no round trip: a condition of the UPDATE that is to wait.

    PostgreSQL evaluates it when it has found the row and before it locks it.
    """

    arity = 0
    template = f"set_config('lock_timeout', '{LOCK_WAIT}s', true) IS NOT NULL"
    output_field = BooleanField()


def briefly(rows: QuerySet[Any]) -> QuerySet[Any]:
    """Return ``rows`` so that their ``update()`` waits for ``LOCK_WAIT`` seconds at most, on PostgreSQL.

    It applies until the end of the transaction.
    """
    return rows.filter(_SetLockTimeout()) if connections[rows.db].vendor == "postgresql" else rows


@contextmanager
def brief_waits(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Let the statements of a block wait for ``LOCK_WAIT`` seconds at most, on MySQL and MariaDB."""
    if connection.vendor != "mysql":
        yield
        return
    with connection.cursor() as cursor:
        cursor.execute(
            "SET @tasklock_wait = @@SESSION.innodb_lock_wait_timeout, SESSION innodb_lock_wait_timeout = %s",
            [LOCK_WAIT],
        )
    try:
        yield
    finally:
        if connection.connection is not None:
            with suppress(*errors_of(connection)), connection.cursor() as cursor:  # dropped: the next one has its own
                cursor.execute("SET SESSION innodb_lock_wait_timeout = @tasklock_wait")
