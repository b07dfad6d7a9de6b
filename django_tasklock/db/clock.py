"""The database's clock as an expression.

It is read when the statement starts, which may be before the statement has waited for a
row lock. That is safe: the holder counts its lease from before the request, so the stored
lease ends no earlier than the holder assumes; and a lock that expired during the wait is
only found busy once more.
"""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import BigIntegerField, Func
from django.db.models.sql.compiler import SQLCompiler

_Sql = tuple[str, tuple[Any, ...]]


class Now(Func):
    """Milliseconds since 1970, by the database's clock. ``ImproperlyConfigured`` if it is not a supported one."""

    arity = 0
    output_field = BigIntegerField()

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, *args: Any, **extra: Any) -> Any:
        raise ImproperlyConfigured(
            f"the database backend of django_tasklock works on SQLite, PostgreSQL, MySQL and MariaDB, not on"
            f" {connection.vendor!r}; route LockRow to one of those, or name Redis in TASKLOCK['LOCATION']"
        )

    def as_sqlite(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **extra: Any) -> _Sql:
        return "CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)", ()

    def as_postgresql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **extra: Any) -> _Sql:
        # Not clock_timestamp(): it is volatile, and a comparison with it uses no index.
        return "(EXTRACT(EPOCH FROM STATEMENT_TIMESTAMP()) * 1000)::bigint", ()

    def as_mysql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **extra: Any) -> _Sql:
        # Not SYSDATE() or NOW(): they are in the session's time zone, and jump when summer time ends.
        return "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000)", ()


class AggregateNow(Now):
    """``Now`` for ``aggregate()``, which always returns one row: so there is a time even if there are no locks."""

    contains_aggregate = True
