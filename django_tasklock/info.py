"""Records of the store in words and seconds, for people."""

from __future__ import annotations

from datetime import UTC, datetime

from django_tasklock.exceptions import TaskLockAcquireError
from django_tasklock.types import Busy, LockInfo, Record, fingerprint

__all__ = ["all_taken", "busy_error", "lock_info"]


def lock_info(record: Record) -> LockInfo:
    """What people are shown of a held lock."""
    return LockInfo(
        name=record.name,
        holder=str(record.holder),
        fingerprint=fingerprint(record.token),
        acquired_at=datetime.fromtimestamp(record.at / 1000, UTC),
        held_for=max(0, record.now - record.at) / 1000,
        ttl=None if record.ttl is None else record.ttl / 1000,
        time_left=max(0, record.until - record.now) / 1000,
        fence=record.fence,
        waiting=record.waiting,
        task=record.holder.task,
        task_id=record.holder.task_id,
    )


def busy_error(name: str, busy: Busy) -> TaskLockAcquireError:
    """The error for a busy lock: who has it, since when, for how long at the most."""
    if busy.record is None:
        return TaskLockAcquireError(f"lock {name!r} is held by somebody", name=name)
    info = lock_info(busy.record)
    text = (
        f"lock {name!r} is held by {info.holder} for {info.held_for:.1f} s, {info.time_left:.0f} s of its timeout left"
    )
    return TaskLockAcquireError(text, name=name, holder=info.holder, held_for=info.held_for, time_left=info.time_left)


def all_taken(name: str, limit: int, busy: Busy) -> TaskLockAcquireError:
    """The error for a limiter whose permits are taken: one of those who have one."""
    if busy.record is None:
        return TaskLockAcquireError(f"limiter {name!r}: others are first to be given one of its permits", name=name)
    info = lock_info(busy.record)
    text = (
        f"limiter {name!r}: none of {limit} permits is free; one is held by {info.holder} for {info.held_for:.1f} s,"
        f" {info.time_left:.0f} s of its timeout left"
    )
    return TaskLockAcquireError(text, name=name, holder=info.holder, held_for=info.held_for, time_left=info.time_left)
