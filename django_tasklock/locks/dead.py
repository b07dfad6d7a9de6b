"""Locks and permits of processes that are proven dead: whoever finds one in the way frees it.

Proven is what the kernel of the same machine says of a pid and its start time (``holder.alive``), never an age. What a
process of another machine has left ends with its lease.
"""

from __future__ import annotations

import logging

from django_tasklock.backends.contract.stores import LockStore, Permits
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.locks import events
from django_tasklock.locks.holder import alive
from django_tasklock.names import each_of
from django_tasklock.types import Record

logger = logging.getLogger("django_tasklock")

RENEWED = 250
"""Milliseconds by which the expiry of a lock must be before its timeout, for it to have a lease that is renewed."""


def is_freeable(record: Record) -> bool:
    """Tell whether the holder's process is proven dead and its lock, or permit, may be freed for that.

    One without a lease, as the plain functions acquire it, may not: it may be meant to outlive its process.
    """
    ttl = record.ttl
    leased = ttl is not None and record.until - record.now > ttl + RENEWED
    return leased and bool(record.token) and alive(record.holder) is False


def free_dead(store: LockStore | Permits, record: Record, name: str) -> bool:
    """Free the lock or the permit of a dead process. Return whether this call is known to have done so.

    It is not known if the reply was lost. ``name``: that of the lock that is wanted, one or several.
    """
    try:
        freed = [found for one in each_of(name) if (found := store.remove(one, record.token)) is not None]
    except BackendUnavailable as error:  # the next acquire applies the policy
        logger.warning("%s %r: %s died, but it could not be freed: %s", store.noun, name, record.holder, error)
        return False
    if freed:
        events.holder_died(freed[0], name, store.noun)
    return bool(freed)
