"""``LockParameters``: the options of a lock, checked once."""

from __future__ import annotations

import math
from functools import lru_cache, partial
from typing import NamedTuple

from django.core.signals import setting_changed

from django_tasklock.conf import Duration, LeaseTime, OnUnavailable, Timeout, get_settings, milliseconds, spans
from django_tasklock.exceptions import TaskLockError

POLICIES = ("run", "raise", "skip")


def patience(blocking: bool | None, blocking_timeout: Duration | None, name: str) -> float:
    """Return the seconds to wait: 0 not at all, infinite without a limit.

    Raises ``TaskLockError`` for a limit that is none.
    """
    if blocking_timeout is None:
        return math.inf if blocking else 0.0
    if blocking is False:
        raise TaskLockError(f"blocking_timeout={blocking_timeout!r} with blocking=False means nothing", name=name)
    return milliseconds(blocking_timeout, "blocking_timeout", name=name) / 1000


class LockParameters(NamedTuple):
    """What a lock was made with. ``hold_ms`` and ``lease_ms`` are milliseconds, ``patience`` is seconds."""

    hold_ms: int
    """The timeout: the most that one holder may have it."""
    lease_ms: int | None
    """How long it outlives a holder that died; ``None``: it is not renewed, and lives for its timeout."""
    ttl: int
    """How long its key lives if nobody renews it, in milliseconds."""
    patience: float
    """How long ``acquire()`` waits where nobody says otherwise."""
    reentrant: bool
    on_unavailable: OnUnavailable
    counted: bool = True
    """Whether the store counts what happens to it."""

    @classmethod
    def checked(
        cls,
        name: str,
        timeout: Timeout,
        lease: LeaseTime,
        blocking: bool | None,
        blocking_timeout: Duration | None,
        reentrant: bool,
        on_unavailable: OnUnavailable | None,
    ) -> LockParameters:
        """Return what these options make, defaults filled in. Raises ``TaskLockError`` for what cannot be."""
        try:
            return _known(timeout, lease, blocking, blocking_timeout, reentrant, on_unavailable)
        except (TaskLockError, TypeError):  # once more, with the name; or something that is no option of any lock
            return _checked(name, timeout, lease, blocking, blocking_timeout, reentrant, on_unavailable)


def _checked(
    name: str,
    timeout: Timeout,
    lease: LeaseTime,
    blocking: bool | None,
    blocking_timeout: Duration | None,
    reentrant: bool,
    on_unavailable: OnUnavailable | None,
) -> LockParameters:
    hold_ms, lease_ms = spans(timeout, lease, name)
    wait = patience(blocking, blocking_timeout, name)
    settings = get_settings()
    policy = settings.ON_UNAVAILABLE if on_unavailable is None else on_unavailable
    if policy not in POLICIES:
        raise TaskLockError(f"on_unavailable must be 'run', 'raise' or 'skip', not {on_unavailable!r}", name=name)
    return LockParameters(hold_ms, lease_ms, lease_ms or hold_ms, wait, reentrant, policy, settings.METRICS)


_known = lru_cache(128, typed=True)(partial(_checked, ""))  # options are few, and alike from lock to lock


def _forget(*, setting: str, **kwargs: object) -> None:
    if setting == "TASKLOCK":
        _known.cache_clear()


setting_changed.connect(_forget, dispatch_uid="tasklock.locks.parameters")
