"""Resetting the state of this process."""

from __future__ import annotations

import sys

from django_tasklock.backends import memory

REMEMBERING = (
    "django_tasklock.context",
    "django_tasklock.locks.heartbeat",
    "django_tasklock.locks.functions",
    "django_tasklock.locks.lease",
    "django_tasklock.db.transactions",
    "django_tasklock.celery.publish",
    "django_tasklock.rates.answers",
    "django_tasklock.rates.outage",
    "django_tasklock.health.database",
    "django_tasklock.health.store",
    "django_tasklock.counts",
)
"""Modules whose ``forget()`` is called, in this order, if they were imported."""


def reset() -> None:
    """Reset this process and empty the memory store, between two tests.

    It calls ``forget()``, removes every lock, permit, booking and waiter from the memory store, and undoes ``advance``.
    Decorated functions, registered guards and connections stay.

        >>> acquire_task_lock("report")
        True
        >>> testing.reset()
        >>> is_task_locked("report")
        False
    """
    forget()
    memory.reset()


def forget() -> None:
    """Forget the locks, permits and limits of this process, as if it had died and another one had started.

    Leases are neither renewed nor released any more, and their tokens are forgotten. Rate limiters know no outages
    any more, and counts are zero. The store is unchanged: a lock stays busy until its lease ends, for
    this process, too. The holder's process still counts as alive, for example for the sweep, because it is.

        >>> lock = TaskLock("report", lease=60)
        >>> lock.acquire()
        True
        >>> testing.forget()
        >>> lock.held, is_task_locked("report")
        (False, True)
        >>> testing.advance(61)
        >>> is_task_locked("report")
        False
    """
    for name in REMEMBERING:
        module = sys.modules.get(name)
        if module is not None:
            module.forget()
