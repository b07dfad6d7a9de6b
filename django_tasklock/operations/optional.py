"""Calls that not every store supports."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from django_tasklock.exceptions import BackendUnavailable, TaskLockError

_T = TypeVar("_T")


def if_supported(call: Callable[[], _T]) -> _T | None:
    """Return the result of ``call``; ``None`` if the store does not support it. Raises ``BackendUnavailable``."""
    try:
        return call()
    except BackendUnavailable:
        raise
    except TaskLockError:
        return None
