"""Forgetting: what this process has of locks and limits."""

from __future__ import annotations

import sys

from django_tasklock.backends import memory

REMEMBERING = (
    "django_tasklock.context",
    "django_tasklock.locks.heartbeat",
    "django_tasklock.locks.registry",
    "django_tasklock.locks.lease",
    "django_tasklock.locks.ownership",
    "django_tasklock.db.transactions",
    "django_tasklock.rates.watch",
    "django_tasklock.rates.terms",
    "django_tasklock.rates.outage",
    "django_tasklock.health.database",
    "django_tasklock.health.store",
    "django_tasklock.metrics",
)
"""Modules whose ``forget()`` is called, in this order, if they were imported."""


def reset() -> None:
    """Forget everything of this process, and empty the memory store: call it between two tests.

    That is ``forget()``, and every lock, permit, booking and waiter in the memory store, and the time that
    ``advance`` skipped. Decorated functions, registered guards and connections stay.

        >>> acquire_task_lock("report")
        True
        >>> testing.reset()
        >>> is_task_locked("report")
        False
    """
    forget()
    memory.reset()


def forget() -> None:
    """Forget what this process has of locks, permits and limits, as if it had died and another had begun.

    Nobody renews the leases any more, gives them back, or remembers their tokens; outages, terms and clocks that rate
    limiters have heard of are unknown again, and counts are zero. What the store has stays until its lease ends: a
    lock is busy for that long, for this process, too. Only who asks whether the holder's process lives, as the sweep
    does, is told that it does, because it does.

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
