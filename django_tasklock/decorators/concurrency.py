"""``concurrency_limited``: run a function while one has a permit of a concurrency limiter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from django_tasklock.conf import DEFAULT, WORDS, Duration, LeaseTime, OnUnavailable, Timeout, get_settings, spans
from django_tasklock.decorators.call import Running
from django_tasklock.decorators.wrapping import around, check_conflict, check_release, refuse
from django_tasklock.exceptions import TaskLockError
from django_tasklock.host import host
from django_tasklock.locks.semaphore import ConcurrencyLimiter, check_limit
from django_tasklock.names import NameTemplate
from django_tasklock.types import LimiterInfo

F = TypeVar("F", bound=Callable[..., Any])

OnLimit = Literal["skip", "raise", "wait", "retry", "reject"]
"""What is done when no permit is free. The last two need a message to put aside: only under Celery."""


class Limited:
    """What ``function.limiter`` answers: the limiter of one call, before that call is made."""

    def __init__(self, template: NameTemplate, limit: int) -> None:
        self.template = template
        self.limit = limit

    def name(self, /, **arguments: Any) -> str:
        """The limiter's name for these arguments; those that the name uses and that have no default are enough."""
        if callable(self.template.template):
            return self.template.name((), arguments)
        parameters = self.template.signature.parameters.values()
        defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        return self.template.name_for(defaults | arguments)

    def info(self, /, **arguments: Any) -> LimiterInfo:
        """Who has its permits now. Raises ``BackendUnavailable``."""
        return ConcurrencyLimiter(self.name(**arguments), self.limit).info()


class LimitedRun(Running):
    """One call of a function with a limiter, here where nobody can put a message aside."""

    lock: ConcurrencyLimiter
    reason = "limit_reached"
    word = "wait"
    """What is done where the decorator does not say."""

    def __init__(
        self, lock: ConcurrencyLimiter, on_conflict: str | None, release_connections: bool | None = None
    ) -> None:
        super().__init__(lock, on_conflict or self.word, release_connections=release_connections)

    def _acquire(self) -> bool:
        return self.lock.acquire() if self.on_conflict == "wait" else self.lock.acquire(blocking=False)

    async def _aacquire(self) -> bool:
        return await (self.lock.aacquire() if self.on_conflict == "wait" else self.lock.aacquire(blocking=False))


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

    ``name``: a template over its arguments, ``"transcode:{site}"``, or a callable that takes them.
    No permit free, by ``on_conflict``: ``"wait"`` waits ``blocking_timeout`` seconds (by default the
    timeout), then raises ``TaskLockAcquireError``; ``"raise"`` raises it; ``"skip"`` returns ``{"status":
    "skipped", "reason": "limit_reached", ...}``. In a Celery task also ``"retry"`` (the message comes
    again in 1 to 30 s, no retries are spent) and ``"reject"``; elsewhere these two raise. By default a task
    retries and whatever else waits: that others are busy is no reason to leave work undone, which is why
    ``TASKLOCK["ON_CONFLICT"]`` does not count here. ``release_connections``: as for ``task_lock``.

    Put it *below* ``@shared_task``. Raises ``TaskLockError`` at decoration for what cannot work.
    """
    check_limit(limit)
    check_release(release_connections)
    if on_conflict in ("queue", "coalesce"):
        raise TaskLockError(
            f"on_conflict={on_conflict!r} is for locks: a message is parked behind one holder, and a limiter has"
            f" {limit}; use 'retry', which also gives the worker back, or 'wait', which keeps the order"
        )
    if on_conflict is not None and on_conflict not in WORDS:
        known = ", ".join(repr(word) for word in WORDS if word not in ("queue", "coalesce"))
        raise TaskLockError(f"on_conflict must be one of {known}, not {on_conflict!r}")
    if on_unavailable not in (None, "run", "raise", "skip"):
        raise TaskLockError(f"on_unavailable must be 'run', 'raise' or 'skip', not {on_unavailable!r}")
    if blocking_timeout is not None:
        check_conflict("wait" if on_conflict is None else on_conflict, blocking_timeout, None)

    def decorate(function: F) -> F:
        refuse(function)
        template = NameTemplate(name, function, prefix=get_settings().KEY_PREFIX)
        label = name if isinstance(name, str) else getattr(name, "__qualname__", repr(name))
        hold, _ = spans(timeout, lease, label)
        limited = Limited(template, limit)

        def running(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Running:
            limiter = ConcurrencyLimiter(
                template.name(args, kwargs),
                limit,
                timeout=timeout,
                lease=lease,
                blocking_timeout=blocking_timeout or hold / 1000,
                on_unavailable=on_unavailable,
            )
            return host().call_for(limited, LimitedRun)(limiter, on_conflict, release_connections)

        wrapper = around(function, running, template.signature)
        wrapper.limiter = limited  # type: ignore[attr-defined]
        return wrapper

    return decorate
