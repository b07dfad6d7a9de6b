"""Threads beside forks: a child has none of its parent's, and all that they have locked, or opened.

What another thread has locked nobody unlocks in the child, above all modules that are being imported: a new pool
process that needs one of them would wait for ever. So the threads in a worker's main process do what they do in
``no_fork()``, and a fork waits until they are done.

What only such a thread knew CPython collects in the child, and a connection that is collected is closed: it takes leave
of the server in the parent's name, and SQLite rolls back the transaction that the parent is in, which leaves the file
malformed. So a child keeps these. And what SQLite had locked when it was forked a child believes to have locked itself:
it reads while others write, and never writes. So a fork waits longer for what this package does there.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from django.db.backends.base.base import BaseDatabaseWrapper

from django_tasklock.db import pools

PATIENCE = 3.0  # seconds for which a fork waits: with the broker down a thread may take long, and the worker must go on
AT_WORK = 30.0  # the same while SQLite is at work: longer than that waits for its file, where nobody says otherwise
PAUSE = 0.002  # seconds between two looks whether it is

_lock = threading.RLock()
_at_work: dict[int, None] = {}  # threads
_forking: dict[int, None] = {}  # threads
_own = threading.local()  # of a thread that forks: whether it has the lock, and the drivers' connections, once it knows
_inherited: list[object] = []


@contextmanager
def no_fork() -> Iterator[None]:
    """Keep other threads from forking meanwhile: for something brief that a fork must not cut in two."""
    with _lock:
        yield


@contextmanager
def no_fork_on(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Keep other threads from forking meanwhile, if ``connection`` is to SQLite."""
    here = threading.get_ident()
    if connection.vendor != "sqlite" or here in _at_work:
        yield
        return
    try:
        _at_work[here] = None  # before the look: of a thread and a fork that come at once each sees the other
        while _forking:
            del _at_work[here]
            time.sleep(PAUSE)
            _at_work[here] = None
        yield
    finally:
        _at_work.pop(here, None)


def before_fork() -> None:
    """Wait for other threads, and hold fast what they have opened."""
    _own.waited = _lock.acquire(timeout=PATIENCE)
    here, ends = threading.get_ident(), time.monotonic() + AT_WORK
    _forking[here] = None
    while any(thread != here for thread in list(_at_work)) and time.monotonic() < ends:
        time.sleep(PAUSE)
    _own.opened = [raw for raw in map(_to_be_kept, pools.opened()) if raw is not None]


def _to_be_kept(connection: BaseDatabaseWrapper) -> object:
    """Return the driver's connection, if no child may close it. SQLite's child may, and had better, that is idle."""
    raw = connection.connection
    with contextlib.suppress(Exception):  # its thread may close it now
        return None if connection.vendor == "sqlite" and not raw.in_transaction else raw
    return None


def after_fork_in_parent() -> None:
    """Let the others go on."""
    _forking.pop(threading.get_ident(), None)
    _own.opened = []
    if getattr(_own, "waited", False):
        _lock.release()


def after_fork() -> None:
    """Forget the threads of the parent, but not what they have opened."""
    global _lock
    _lock = threading.RLock()
    _forking.clear()
    _at_work.clear()
    _inherited.append(getattr(_own, "opened", None))
