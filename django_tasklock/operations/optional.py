"""Calls that not every store supports."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from django_tasklock.exceptions import BackendUnavailable, TaskLockError

_T = TypeVar("_T")


def if_supported(ask: Callable[[], _T]) -> _T | None:
    """Return the result of ``ask``; ``None`` if the store does not support it. Raises ``BackendUnavailable``."""
    try:
        return ask()
    except BackendUnavailable:
        raise
    except TaskLockError:
        return None
