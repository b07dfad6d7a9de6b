"""``concurrency_limited``: run a function with a permit of a concurrency limiter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from django_tasklock.conf import DEFAULT, Duration, LeaseTime, OnUnavailable, Timeout, get_settings
from django_tasklock.decorators.locks import NamedByCall, label_of
from django_tasklock.decorators.options import LockOptions, OnLimit
from django_tasklock.decorators.wrapping import check_decoratable, wrap
from django_tasklock.locks.semaphore import ConcurrencyLimiter
from django_tasklock.names import NameTemplate
from django_tasklock.types import LimiterInfo

F = TypeVar("F", bound=Callable[..., Any])


class PermitOfCall(NamedByCall):
    """The limiter of a decorated function, by the arguments of a call that need not be made: ``function.limiter``."""

    template: NameTemplate

    def __init__(self, template: NameTemplate, limit: int, on_conflict: OnLimit | None = None) -> None:
        super().__init__(template)
        self.limit = limit
        self.on_conflict = on_conflict

    def info(self, /, *args: Any, **arguments: Any) -> LimiterInfo:
        """Return the members of the limiter of such a call. Raises ``BackendUnavailable``."""
        return ConcurrencyLimiter(self.name(*args, **arguments), self.limit).info()


def concurrency_limited(
    name: str | Callable[..., str],
    limit: int,
    *,
    timeout: Timeout = DEFAULT,
    lease: LeaseTime = DEFAULT,
    on_conflict: OnLimit | None = None,
    blocking_timeout: Duration | None = None,
    on_unavailable: OnUnavailable | None = None,
    release_connections: bool | None = None,
) -> Callable[[F], F]:
    """Run the decorated function at most ``limit`` times at once per name, over all processes.

    ``name``: a template over the arguments, ``"transcode:{site}"``, or a callable that takes them.

    ``on_conflict`` decides what a call does when no permit is free: ``"wait"`` waits for ``blocking_timeout`` seconds
    (by default the timeout), then raises ``TaskLockAcquireError``; ``"raise"`` raises it at once; ``"skip"`` returns
    ``{"status": "skipped", "reason": "limit_reached", ...}``. A Celery task can also use ``"retry"`` (the message comes
    again in 1 to 30 s and spends no retries) and ``"reject"``; elsewhere these two raise. By default a Celery task
    retries, and any other call waits. ``TASKLOCK["ON_CONFLICT"]`` does not apply: a busy limiter is no reason to leave
    work undone. ``release_connections``: as for ``task_lock``.

    Put it *below* ``@shared_task``. Raises ``TaskLockError`` at decoration for options that cannot work.
    """
    options = LockOptions(
        label=label_of(name),
        decorator="concurrency_limited",
        limit=limit,
        timeout=timeout,
        lease=lease,
        on_conflict=on_conflict,
        blocking_timeout=blocking_timeout,
        on_unavailable=on_unavailable,
        release_connections=release_connections,
    )

    def decorate(function: F) -> F:
        check_decoratable(function)
        template = NameTemplate(name, function, prefix=get_settings().prefix)
        permit = PermitOfCall(template, limit, on_conflict)
        wrapper = wrap(
            function, lambda args, kwargs: options.call(template.name(args, kwargs)), template.signature, permit
        )
        wrapper.limiter = permit  # type: ignore[attr-defined]
        return wrapper

    return decorate
