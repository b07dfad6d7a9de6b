"""Threads beside forks: a child inherits what another thread of its parent has locked, and nobody unlocks it there.

Above all modules that are being imported: a new pool process that needs one of them would wait for ever. So the
threads in a worker's main process do what they do in ``no_fork()``, and a fork waits until they are done.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE = 3.0  # seconds for which a fork waits: with the broker down a thread may take long, and the worker must go on

_lock = threading.RLock()
_waited = False


@contextmanager
def no_fork() -> Iterator[None]:
    """Keep other threads from forking meanwhile: for something brief that a fork must not cut in two."""
    with _lock:
        yield


def install() -> None:
    """Let forks of this process wait. Once."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)


def _before() -> None:
    global _waited
    _waited = _lock.acquire(timeout=PATIENCE)


def _after_in_parent() -> None:
    if _waited:
        _lock.release()


def _after_in_child() -> None:
    global _lock
    _lock = threading.RLock()
