"""Records of the store as values for people: names, seconds and points in time."""

from __future__ import annotations

from datetime import UTC, datetime

from django_tasklock.exceptions import TaskLockAcquireError
from django_tasklock.locks.holder import alive
from django_tasklock.texts import printable
from django_tasklock.types import LATEST, Busy, LockInfo, Record, fingerprint


def lock_info(record: Record) -> LockInfo:
    """Return the ``LockInfo`` of a record."""
    holder = record.holder
    return LockInfo(
        name=printable(record.name),
        holder=str(holder),
        fingerprint=fingerprint(record.token),
        acquired_at=datetime_of(record.at),
        held_for=max(0, record.now - record.at) / 1000,
        ttl=None if record.ttl is None else record.ttl / 1000,
        time_left=max(0, record.until - record.now) / 1000,
        fence=record.fence,
        waiting=record.waiting,
        task=printable(holder.task),
        task_id=printable(holder.task_id),
    )


def datetime_of(at: int) -> datetime:
    """Return a time of the store, milliseconds since 1970. A time out of range becomes the nearest valid one."""
    return datetime.fromtimestamp(min(max(at, 0), LATEST) / 1000, UTC)


def busy_error(name: str, busy: Busy) -> TaskLockAcquireError:
    """Return the error for a busy lock: its holder, since when, and how much of the timeout remains."""
    if busy.record is None:
        return TaskLockAcquireError(f"lock {name!r} is held", name=name)
    info = lock_info(busy.record)
    text = f"lock {name!r} is held by {info.holder} for {info.held_for:.1f} s, {_ends(busy.record, info)}"
    return TaskLockAcquireError(text, name=name, holder=info.holder, held_for=info.held_for, time_left=info.time_left)


def _ends(record: Record, info: LockInfo) -> str:
    """Return in words when it ends: of a dead holder, when its lease does."""
    if alive(record.holder) is False and info.ttl is not None:
        return f"its process has ended, so it is free in {info.ttl:.0f} s"
    return left_in_words(info)


def left_in_words(info: LockInfo) -> str:
    """Return in words how long the holder may keep it."""
    if info.without_timeout:
        return "until it is released"
    return f"{info.time_left:.0f} s of its timeout left"


def all_taken(name: str, limit: int, busy: Busy) -> TaskLockAcquireError:
    """Return the error for a limiter without a free permit. It names one of the members."""
    if busy.record is None:
        return TaskLockAcquireError(f"limiter {name!r}: others are first to be given one of its permits", name=name)
    info = lock_info(busy.record)
    text = (
        f"limiter {name!r}: none of {limit} permits is free; one is held by {info.holder} for {info.held_for:.1f} s,"
        f" {_ends(busy.record, info)}"
    )
    return TaskLockAcquireError(text, name=name, holder=info.holder, held_for=info.held_for, time_left=info.time_left)
