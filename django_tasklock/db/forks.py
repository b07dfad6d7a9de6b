"""Forks in a process with threads: the child has none of the threads, but their locks and connections.

A lock that another thread holds is never released in the child, in particular the import lock of a module: a new pool
process that needs that module would wait forever. So the threads in a worker's main process work inside ``no_fork()``,
and a fork waits until they are done.

Objects that only such a thread referenced are garbage in the child, and a connection that is collected is closed: it
sends a farewell to the server on the parent's socket, and with SQLite it rolls back the parent's open transaction,
which leaves the file malformed. So a child keeps references to these. Also, a child regards locks that SQLite held on
its file during the fork as its own: it reads while others write, and can never write. So a fork waits longer for this
package's work with SQLite.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from django.db.backends.base.base import BaseDatabaseWrapper

from django_tasklock.db import pools

MAX_WAIT = 3.0  # seconds that a fork waits: with the broker down a thread may take long, and the worker must continue
SQLITE_MAX_WAIT = 30.0  # the same for work with SQLite: longer than its default timeout for a locked file
POLL_INTERVAL = 0.002  # seconds between two checks for such work

_lock = threading.RLock()
_sqlite_threads: dict[int, None] = {}  # ids
_forking_threads: dict[int, None] = {}  # ids
_local = threading.local()  # of a forking thread: `waited`, whether it has the lock, and `opened`, drivers' connections
_inherited: list[object] = []


@contextmanager
def no_fork() -> Iterator[None]:
    """Keep other threads from forking during the block: for short work that a fork must not interrupt."""
    with _lock:
        yield


@contextmanager
def no_fork_on(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Keep other threads from forking during the block, if ``connection`` is to SQLite."""
    here = threading.get_ident()
    if connection.vendor != "sqlite" or here in _sqlite_threads:
        yield
        return
    try:
        _sqlite_threads[here] = None  # before the check: so a thread and a fork that begin at once see each other
        while _forking_threads:
            del _sqlite_threads[here]
            time.sleep(POLL_INTERVAL)
            _sqlite_threads[here] = None
        yield
    finally:
        _sqlite_threads.pop(here, None)


def before_fork() -> None:
    """Wait for other threads, and keep references to their connections."""
    _local.waited = _lock.acquire(timeout=MAX_WAIT)
    here, ends = threading.get_ident(), time.monotonic() + SQLITE_MAX_WAIT
    _forking_threads[here] = None
    while any(thread != here for thread in list(_sqlite_threads)) and time.monotonic() < ends:
        time.sleep(POLL_INTERVAL)
    _local.opened = [raw for raw in map(_connection_to_keep, pools.opened()) if raw is not None]


def _connection_to_keep(connection: BaseDatabaseWrapper) -> object:
    """Return the driver's connection, if the child must not close it. An idle one of SQLite it may and should close."""
    raw = connection.connection
    with contextlib.suppress(Exception):  # its thread may be closing it
        return None if connection.vendor == "sqlite" and not raw.in_transaction else raw
    return None


def after_fork_in_parent() -> None:
    """Let the other threads continue."""
    _forking_threads.pop(threading.get_ident(), None)
    _local.opened = []
    if getattr(_local, "waited", False):
        _lock.release()


def after_fork() -> None:
    """Forget the parent's threads, but keep references to their connections."""
    global _lock
    _lock = threading.RLock()
    _forking_threads.clear()
    _sqlite_threads.clear()
    _inherited.append(getattr(_local, "opened", None))
