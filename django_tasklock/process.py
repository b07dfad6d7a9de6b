"""The process, to which leases, connections and counts belong: a forked child begins without those of its parent.

Python's fork hooks tell the child at once. uWSGI forks without them: so every way to what belongs to a process begins
with ``check_process()``, which notices by the pid that this is another process.
"""

from __future__ import annotations

import os
import sys
import threading

AFTER_FORK = (
    "django_tasklock.locks.holder",
    "django_tasklock.locks.lease",
    "django_tasklock.locks.heartbeat",
    "django_tasklock.locks.functions",
    "django_tasklock.backends",
    "django_tasklock.backends.contract.threads",
    "django_tasklock.backends.memory.store",
    "django_tasklock.db.connections",
    "django_tasklock.db.pools",
    "django_tasklock.db.forks",
    "django_tasklock.counts",
)
"""Modules whose ``after_fork()`` is called in a forked child, in this order, if they were imported: the identity of the
process comes first, then the leases, connections and caches that it does not share with its parent."""

_pid = os.getpid()
_turns: dict[int, threading.RLock] = {}  # by pid: a thread of the parent may hold the parent's


def check_process() -> None:
    """Begin anew if this is a forked child that has not done so. Threads that come here at once wait for the first."""
    if os.getpid() == _pid:
        return
    with _turns.setdefault(os.getpid(), threading.RLock()):
        if os.getpid() != _pid:
            begin_anew()


def begin_anew() -> None:
    """Begin anew, in a forked child."""
    global _pid
    for name in AFTER_FORK:
        module = sys.modules.get(name)
        if module is not None:
            module.after_fork()
    _pid = os.getpid()  # last: until then other threads wait
