"""Acquiring a lock that another delivery of the same message may hold, alive or dead, or its last try.

A delivery that finds its own message in the lock is never skipped: a worker that died leaves its lock behind, and
skipping the redelivered message would acknowledge work that is never done.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import NamedTuple, NoReturn

from django_tasklock.backends import get_backend
from django_tasklock.celery.exceptions import Duplicate
from django_tasklock.celery.message import Message
from django_tasklock.counts import TIMED_OUT
from django_tasklock.exceptions import BackendUnavailable, TaskLockAcquireError
from django_tasklock.locks import events
from django_tasklock.locks.holder import RENEWED, abandoned, alive
from django_tasklock.locks.lock import TaskLock
from django_tasklock.names import each_of
from django_tasklock.types import Holder, Record, monotonic

logger = logging.getLogger("django_tasklock")

POLL_INTERVAL = 1.0  # seconds between two checks of a lease that may be renewed
MARGIN = 0.1  # seconds by which an expiring lease may seem to end early


class Attempt(NamedTuple):
    """The result of a delivery's attempt to acquire its lock, and what it found out about earlier deliveries."""

    taken: bool = False
    """Whether the lock was acquired."""
    holder_died: bool = False
    """Whether the process of an earlier delivery was found dead."""
    freed_boots: frozenset[str] = frozenset()
    """The dead processes (``Holder.boot``) of earlier deliveries whose lock this very attempt freed."""
    undecided: bool = False
    """Whether neither a renewal nor the end of the lease was seen in time."""
    released_meanwhile: bool = False
    """Whether another holder released the lock meanwhile, perhaps another delivery of this message."""


def acquire_busy(lock: TaskLock, message: Message) -> Attempt:
    """Acquire a lock that was just found busy if its holder is dead. Wait only for an earlier delivery of ``message``.

    Raises ``Duplicate`` if another delivery of it is alive.
    """
    lock.on_busy = lock.on_timeout = ""  # the conflict is counted already
    attempt = resolve_duplicate(lock, message)
    lock.on_timeout = TIMED_OUT
    if attempt.taken or attempt.undecided:
        return attempt
    taken = free_abandoned(lock.busy_record, lock.name) and lock.acquire(blocking=False)
    return attempt._replace(taken=taken, released_meanwhile=not taken)


async def aacquire_busy(lock: TaskLock, message: Message) -> Attempt:
    """Do what ``acquire_busy`` does, for coroutines."""
    lock.on_busy = lock.on_timeout = ""
    attempt = await aresolve_duplicate(lock, message)
    lock.on_timeout = TIMED_OUT
    if attempt.taken or attempt.undecided:
        return attempt
    taken = free_abandoned(lock.busy_record, lock.name) and await lock.aacquire(blocking=False)
    return attempt._replace(taken=taken, released_meanwhile=not taken)


def resolve_duplicate(lock: TaskLock, message: Message) -> Attempt:
    """Decide which delivery continues, after ``lock.acquire()`` found the lock busy.

    An earlier try that is about to end is waited for, as ``retry()`` publishes before it raises. The lock of a dead
    process is taken over by its token. Whether a process of another machine is alive is unknown: if its lease is
    renewed it is alive, if the lease expires it is dead.

    Raises ``Duplicate`` if another delivery is alive.
    """
    checks = _check_holder(lock, message)
    try:
        next(checks)
        while True:
            taken = lock.acquire(blocking=False) or lock.acquire(blocking_timeout=POLL_INTERVAL)
            checks.send(taken)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def aresolve_duplicate(lock: TaskLock, message: Message) -> Attempt:
    """Do what ``resolve_duplicate`` does, for coroutines."""
    checks = _check_holder(lock, message)
    try:
        next(checks)
        while True:
            taken = await lock.aacquire(blocking=False) or await lock.aacquire(blocking_timeout=POLL_INTERVAL)
            checks.send(taken)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def is_of_message(holder: Holder, message: Message) -> bool:
    """Return whether the holder is a delivery of this message."""
    return holder.task_id == message.id and holder.task == message.task.name


def _check_holder(lock: TaskLock, message: Message) -> Generator[None, bool, Attempt]:
    """Check the holder before each ``yield``, which receives whether the lock was acquired then. Return the attempt."""
    holder_died, freed_boots = False, set[str]()
    ends = monotonic() + (lock.parameters.lease_ms or 60_000) / 1000 + 2 * POLL_INTERVAL
    first_record: Record | None = None
    while (record := lock.busy_record) is not None and is_of_message(record.holder, message):
        tries_later = message.try_number - record.holder.retries
        is_alive = alive(record.holder)
        if tries_later < 0:
            discard_duplicate(lock.conflict, message, "a later try of it runs")
        elif is_alive is False:
            logger.warning("lock %r: %s died, its message continues here", lock.name, record.holder)
            holder_died |= not tries_later
            if free_dead_lock(lock.name, record.token) and not tries_later:
                freed_boots.add(record.holder.boot)
        elif not tries_later and (is_alive or (first_record is not None and was_renewed(first_record, record))):
            discard_duplicate(lock.conflict, message, "another delivery of it runs")
        if first_record is None or first_record.token != record.token:
            first_record = record
        now = monotonic()
        if now >= ends:
            return Attempt(holder_died=holder_died, freed_boots=frozenset(freed_boots), undecided=True)
        if (yield):
            in_time = record.ttl is None or monotonic() < now + record.ttl / 1000 - MARGIN
            # Released before its lease could expire: its process did not die.
            released = is_alive is None and not tries_later and in_time
            return Attempt(True, holder_died, frozenset(freed_boots), released_meanwhile=released)
    return Attempt(holder_died=holder_died, freed_boots=frozenset(freed_boots))


def free_abandoned(record: Record | None, name: str) -> bool:
    """Free the lock of an ``abandoned`` holder, of any message. Return whether this call did."""
    if record is None or not abandoned(record):
        return False
    logger.warning("lock %r: %s died, its lock is free", name, record.holder)
    return free_dead_lock(name, record.token)


def free_dead_lock(name: str, token: str) -> bool:
    """Free the lock of a dead process. Return whether this call is known to have done so: the reply may be lost."""
    try:
        freed = [record for one in each_of(name) if (record := get_backend().remove(one, token)) is not None]
    except BackendUnavailable as error:  # the next acquire applies the policy
        logger.warning("lock %r: not taken over: %s", name, error)
        return False
    if freed:
        events.count_forced(freed[0])
    return bool(freed)


def was_renewed(first: Record, now: Record) -> bool:
    """Return whether the lease of the same holder ends later than before."""
    if first.token != now.token or first.ttl is None or now.ttl is None:
        return False
    return now.now + now.ttl > first.now + first.ttl + RENEWED


def discard_duplicate(error: TaskLockAcquireError | None, message: Message, why: str) -> NoReturn:
    """End this delivery without a result, as that is the other delivery's, but log it. Raises ``Duplicate``."""
    text = f"{message.task.name}[{message.id}] is delivered again: {why}"
    events.conflict(error or TaskLockAcquireError(text), "duplicate")
    raise Duplicate(text)
