"""Django's psycopg pool on the test database, and its counters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection, connections

from tests.support.stores import eventually

__all__ = ["checked_out", "needs_pool", "pooled"]


def needs_pool() -> None:
    """Skip where there is none: only PostgreSQL's has one."""
    if connection.vendor != "postgresql":
        pytest.skip("only Django's PostgreSQL backend has a pool")


@contextmanager
def pooled(**options: Any) -> Iterator[Any]:
    """The default database through a pool of its own; all of its connections are back at the end, or it fails."""
    given = connection.settings_dict["OPTIONS"]
    connection.close()
    given["pool"] = {"min_size": 1, "max_size": 4, "timeout": 10, **options}
    try:
        pool = connection.pool
        yield pool
        connection.close()
        eventually(lambda: checked_out(pool) == 0)
    finally:
        connection.close()
        connection.close_pool()
        del given["pool"]
        connections["default"].close()


def checked_out(pool: Any) -> int:
    """How many connections are not in the pool, by its own counters."""
    told = pool.get_stats()
    return int(told["pool_size"] - told["pool_available"])
