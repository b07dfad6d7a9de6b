"""What not every store can say."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from django_tasklock.exceptions import BackendUnavailable, TaskLockError

_T = TypeVar("_T")


def if_supported(ask: Callable[[], _T]) -> _T | None:
    """Return what ``ask`` says; ``None`` where the store cannot say it. Raises ``BackendUnavailable``."""
    try:
        return ask()
    except BackendUnavailable:
        raise
    except TaskLockError:
        return None
