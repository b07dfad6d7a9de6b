"""The database's clock, as an expression.

It is read when the statement starts, which may be before the statement has waited for a
row lock. That is the safe side: a lease counted from there ends no earlier than its
holder believes, who counts from before the request, and a lock that expired during the
wait is merely found busy once more.
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
        # Not clock_timestamp(): that is volatile, and no index is used for what is compared with it.
        return "(EXTRACT(EPOCH FROM STATEMENT_TIMESTAMP()) * 1000)::bigint", ()

    def as_mysql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **extra: Any) -> _Sql:
        # Not SYSDATE() or NOW(): read in the session's time zone they jump when summer time ends.
        return "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000)", ()


class AggregateNow(Now):
    """``Now`` for ``aggregate()``, which always answers with one row: there is a time even where no lock is."""

    contains_aggregate = True
