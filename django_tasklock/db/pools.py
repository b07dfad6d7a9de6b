"""What is known of the database connections of this process: of a pool by its own counters, else by those seen made.

And forks. A pool of connections that a worker's main process has opened, its threads do, is inherited by every child
it forks: the same sockets, and none of the threads that look after them. The child is made to forget it.
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
    """Connections of this process to one database, in the words of SQLAlchemy's pools; ``None``: there is no telling.

    In a pool ``checked_out + checked_in == pool_size + overflow``, once it has been filled.
    """

    pool_size: int | None = None
    """What the pool keeps."""
    checked_out: int
    """In use, or kept by a thread; in a pool also what it is making just now."""
    overflow: int | None = None
    """Open beyond ``pool_size``."""
    checked_in: int | None = None
    """Idle in the pool."""
    invalid: int | None = None
    """Found broken so far, and replaced."""
    max_size: int | None = None
    """The most there can be."""
    waiting: int | None = None
    """Threads that wait for one."""


_seen: weakref.WeakKeyDictionary[BaseDatabaseWrapper, float] = weakref.WeakKeyDictionary()
_seen_lock = threading.Lock()
_forgotten: list[Any] = []  # kept: what is collected would be closed


def figures(alias: str) -> Figures:
    """Return the figures of the database ``alias``, without asking it. A pool that was not used yet is empty."""
    pool = _pool(alias)
    if pool is None:
        with _seen_lock:
            seen = list(_seen)
        return Figures(checked_out=sum(one.alias == alias and one.connection is not None for one in seen))
    told = pool.get_stats()
    size, idle, least = told["pool_size"], told["pool_available"], told["pool_min"]
    return Figures(
        checked_out=max(0, size - idle),
        pool_size=least,
        checked_in=idle,
        overflow=max(0, size - least),
        invalid=told.get("connections_lost", 0) + told.get("returns_bad", 0),
        max_size=told["pool_max"],
        waiting=told.get("requests_waiting", 0),
    )


def opened() -> list[BaseDatabaseWrapper]:
    """Return the connections of this process, whichever thread has them."""
    with _seen_lock:
        seen = list(_seen)
    return [one for one in seen if one.connection is not None]


def longest_held(alias: str) -> float:
    """Return the seconds for which the oldest connection of this process to ``alias`` is in use; 0: there is none."""
    with _seen_lock:
        seen = list(_seen.items())
    now = time.monotonic()
    return max([now - since for one, since in seen if one.alias == alias and one.connection is not None], default=0.0)


def timeouts(alias: str) -> int:
    """Return how often no connection of the pool was free in time, in this process; 0 where there is no pool."""
    pool = _pool(alias)
    return 0 if pool is None else int(pool.get_stats().get("requests_errors", 0))


def _pool(alias: str) -> Any:
    """Return Django's psycopg pool for the alias, if it is to have one."""
    if not connections.settings[alias].get("OPTIONS", {}).get("pool"):
        return None
    return getattr(connections[alias], "pool", None)


def _note(sender: Any = None, connection: BaseDatabaseWrapper | None = None, **details: Any) -> None:
    if connection is not None:
        with _seen_lock:
            _seen[connection] = time.monotonic()


def after_fork() -> None:
    """Forget the pools of the parent, whose sockets this process has inherited, and keep quiet on them."""
    global _seen, _seen_lock
    _seen, _seen_lock = weakref.WeakKeyDictionary(), threading.Lock()
    module = sys.modules.get("django.db.backends.postgresql.base")
    if module is None:
        return
    inherited = module.DatabaseWrapper._connection_pools
    for pool in inherited.values():
        _forgotten.append(pool)
        for connection in list(getattr(pool, "_pool", ())):
            _cut_off(connection)
        with contextlib.suppress(AttributeError):
            pool._closed = True  # or it waits for its threads when this process ends
    inherited.clear()


def _cut_off(connection: Any) -> None:
    """Let nothing more be said to the parent's server on this connection, be it a farewell."""
    with contextlib.suppress(Exception):
        nowhere = os.open(os.devnull, os.O_RDWR)
        try:
            os.dup2(nowhere, connection.fileno(), inheritable=False)
        finally:
            os.close(nowhere)


def install() -> None:
    """Begin to note connections."""
    connection_created.connect(_note, dispatch_uid="tasklock.pools")
