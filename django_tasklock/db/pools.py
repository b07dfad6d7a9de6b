"""Figures of this process's database connections: from a pool's own counters, else from a record of those created.

Also the handling of pools in forks: a pool that a worker's main process has opened (one of its threads has) is
inherited by every child, with the same sockets and without the pool's threads. The child discards it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import weakref
from dataclasses import dataclass
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Connections of this process to one database, in the terms of SQLAlchemy's pools; ``None``: unknown.

    In a pool ``checked_out + checked_in == pool_size + overflow``, once it has been filled.
    """

    pool_size: int | None = None
    """The number of connections that the pool keeps."""
    checked_out: int
    """In use, or kept by a thread; in a pool also those that it is opening."""
    overflow: int | None = None
    """Open beyond ``pool_size``."""
    checked_in: int | None = None
    """Idle in the pool."""
    invalid: int | None = None
    """Found broken and replaced so far."""
    max_size: int | None = None
    """The maximum number."""
    waiting: int | None = None
    """The number of threads that wait for a connection."""


_created: weakref.WeakKeyDictionary[BaseDatabaseWrapper, float] = weakref.WeakKeyDictionary()
_created_lock = threading.Lock()
_inherited_pools: list[Any] = []  # never collected: that would close their connections


def figures(alias: str) -> Figures:
    """Return the figures of the database ``alias``, without a query. A pool that was not used yet is empty."""
    pool = _pool(alias)
    if pool is None:
        with _created_lock:
            known = list(_created)
        return Figures(checked_out=sum(one.alias == alias and one.connection is not None for one in known))
    stats = pool.get_stats()
    size, idle, least = stats["pool_size"], stats["pool_available"], stats["pool_min"]
    return Figures(
        checked_out=max(0, size - idle),
        pool_size=least,
        checked_in=idle,
        overflow=max(0, size - least),
        invalid=stats.get("connections_lost", 0) + stats.get("returns_bad", 0),
        max_size=stats["pool_max"],
        waiting=stats.get("requests_waiting", 0),
    )


def opened() -> list[BaseDatabaseWrapper]:
    """Return the open connections of all threads of this process."""
    with _created_lock:
        known = list(_created)
    return [one for one in known if one.connection is not None]


def longest_held(alias: str) -> float:
    """Return the seconds since the oldest open connection of this process to ``alias`` was opened; 0: there is none."""
    with _created_lock:
        known = list(_created.items())
    now = time.monotonic()
    return max([now - since for one, since in known if one.alias == alias and one.connection is not None], default=0.0)


def timeouts(alias: str) -> int:
    """Return how often, in this process, no connection of the pool was free in time; 0 without a pool."""
    pool = _pool(alias)
    return 0 if pool is None else int(pool.get_stats().get("requests_errors", 0))


def _pool(alias: str) -> Any:
    """Return Django's psycopg pool for the alias, if it is configured to have one."""
    if not connections.settings[alias].get("OPTIONS", {}).get("pool"):
        return None
    return getattr(connections[alias], "pool", None)


def _record(sender: Any = None, connection: BaseDatabaseWrapper | None = None, **details: Any) -> None:
    if connection is not None:
        with _created_lock:
            _created[connection] = time.monotonic()


def after_fork() -> None:
    """Discard the parent's pools, whose sockets this process has inherited, without sending anything on them."""
    global _created, _created_lock
    _created, _created_lock = weakref.WeakKeyDictionary(), threading.Lock()
    module = sys.modules.get("django.db.backends.postgresql.base")
    if module is None:
        return
    inherited = module.DatabaseWrapper._connection_pools
    for pool in inherited.values():
        _inherited_pools.append(pool)
        for connection in list(getattr(pool, "_pool", ())):
            _mute(connection)
        with contextlib.suppress(AttributeError):
            pool._closed = True  # otherwise it waits for its threads when this process ends
    inherited.clear()


def _mute(connection: Any) -> None:
    """Replace the connection's socket by ``/dev/null``, so that not even a farewell is sent to the parent's server."""
    with contextlib.suppress(Exception):
        null = os.open(os.devnull, os.O_RDWR)
        try:
            os.dup2(null, connection.fileno(), inheritable=False)
        finally:
            os.close(null)


def install() -> None:
    """Begin to record connections."""
    connection_created.connect(_record, dispatch_uid="tasklock.pools")
