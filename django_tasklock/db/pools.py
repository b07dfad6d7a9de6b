"""Figures of this process's database connections: from a pool's own counters, else from a record of those created.

Also the handling of connections and pools in forks: a child inherits those that are open, with the same sockets, and a
pool without its threads. The child discards them, and opens its own.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import weakref
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from django_tasklock.db.own import is_own
from django_tasklock.db.transactions import in_callers_transaction


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


class _Opening(NamedTuple):
    at: float  # monotonic
    process: int  # its pid


# Of both, each access is one step of the interpreter: a thread of the parent might hold a lock at a fork.
_created: weakref.WeakKeyDictionary[BaseDatabaseWrapper, _Opening] = weakref.WeakKeyDictionary()
_pools: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # the pid of the process that has opened it
_inherited: list[Any] = []  # never collected: that would close their connections


def figures(alias: str) -> Figures:
    """Return the figures of the database ``alias``, without a query. A pool that was not used yet is empty."""
    pool = _pool(alias)
    if pool is None:
        return Figures(checked_out=sum(one.alias == alias for one in opened()))
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
    return [one for one, _ in _openings()]


def _openings() -> list[tuple[BaseDatabaseWrapper, _Opening]]:
    found = [(one, _created.get(one)) for reference in _created.keyrefs() if (one := reference()) is not None]
    return [(one, opening) for one, opening in found if opening is not None and one.connection is not None]


def longest_open(alias: str) -> float:
    """Return the seconds since the oldest open connection of this process to ``alias`` was opened; 0: there is none.

    One of a pool counts from when it was taken out of it. The heartbeat's own, which stays open, does not count.
    """
    now = time.monotonic()
    return max(
        [now - opening.at for one, opening in _openings() if one.alias == alias and not is_own(one)], default=0.0
    )


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
        _created[connection] = _Opening(time.monotonic(), os.getpid())
        if (pool := getattr(connection, "pool", None)) is not None:
            _pools.setdefault(pool, os.getpid())


def after_fork() -> None:
    """Discard the parent's connections and pools, without sending anything on the sockets, which are the parent's.

    If the fork is noticed late, this process may have opened some of its own, which stay.
    """
    here = os.getpid()
    for wrapper, opening in _openings():
        if opening.process != here:
            _created.pop(wrapper, None)
            _discard(wrapper)
    module = sys.modules.get("django.db.backends.postgresql.base")
    if module is None:
        return
    pools = module.DatabaseWrapper._connection_pools
    for alias, pool in list(pools.items()):
        if _pools.get(pool) == here:
            continue
        del pools[alias]
        _inherited.append(pool)
        for connection in list(getattr(pool, "_pool", ())):
            _mute(connection)
        with contextlib.suppress(AttributeError):
            pool._closed = True  # otherwise it waits for its threads when this process ends


def _discard(wrapper: Any) -> None:
    """Let the next query on an inherited connection open another. In an open transaction it would be lost, so not.

    Nor with SQLite, which forbids a child even to close one, and takes another one for a user of its locks.
    """
    if wrapper.vendor == "sqlite" or in_callers_transaction(wrapper):
        return
    _mute(wrapper.connection)
    _inherited.append(wrapper.connection)
    wrapper.connection = None


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
