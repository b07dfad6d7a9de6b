"""``here(current_lock)``: what is current, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from django_tasklock import TaskLockError

__all__ = ["here"]

T = TypeVar("T")


def here(current: Callable[[], T]) -> T | None:
    """What ``current_lock``, ``current_claim`` or ``current_limiter`` returns; ``None`` where it raises."""
    try:
        return current()
    except TaskLockError:
        return None
