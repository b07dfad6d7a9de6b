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
from contextlib import AbstractContextManager, contextmanager, nullcontext

from django.db.backends.base.base import BaseDatabaseWrapper

from django_tasklock.db import pools

MAX_WAIT = 3.0  # seconds that a fork waits: with the broker down a thread may take long, and the worker must continue
SQLITE_MAX_WAIT = 30.0  # the same for work with SQLite: longer than its default timeout for a locked file
POLL_INTERVAL = 0.002  # seconds between two checks for such work

_working: dict[int, bool] = {}  # ids of threads in no_fork(), and whether they work with SQLite
_forking: dict[int, None] = {}  # ids of threads
_local = threading.local()  # of a forking thread: ``opened``, drivers' connections
_inherited: list[object] = []


@contextmanager
def no_fork(sqlite: bool = False) -> Iterator[None]:
    """Let forks of other threads wait for the end of the block: for short work that a fork must not interrupt.

    Blocks of several threads do not wait for each other.
    """
    here = threading.get_ident()
    outer = _working.get(here)
    try:
        _working[here] = sqlite or bool(outer)  # before the check: so a fork that begins at once sees it
        while outer is None and _forking and here not in _forking:
            del _working[here]
            time.sleep(POLL_INTERVAL)
            _working[here] = sqlite
        yield
    finally:
        if outer is None:
            _working.pop(here, None)
        else:
            _working[here] = outer


def no_fork_on(connection: BaseDatabaseWrapper) -> AbstractContextManager[None]:
    """Let forks of other threads wait for the end of the block, if ``connection`` is to SQLite."""
    return no_fork(sqlite=True) if connection.vendor == "sqlite" else nullcontext()


def before_fork() -> None:
    """Wait for other threads, and keep references to their connections."""
    here, began = threading.get_ident(), time.monotonic()
    _forking[here] = None
    while any(
        thread != here and time.monotonic() - began < (SQLITE_MAX_WAIT if sqlite else MAX_WAIT)
        for thread, sqlite in list(_working.items())
    ):
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
    _forking.pop(threading.get_ident(), None)
    _local.opened = []


def after_fork() -> None:
    """Forget the parent's threads, but keep references to their connections."""
    _forking.clear()
    _working.clear()
    _inherited.append(getattr(_local, "opened", None))
