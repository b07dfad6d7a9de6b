"""``concurrency_limited``: run a function with a permit of a concurrency limiter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

from django_tasklock.conf import DEFAULT, Duration, LeaseTime, OnUnavailable, Timeout, get_settings, spans
from django_tasklock.counts import clean_kind
from django_tasklock.decorators.call import Call
from django_tasklock.decorators.options import check_conflict, check_policy, check_release, whose
from django_tasklock.decorators.wrapping import check_decoratable, wrap
from django_tasklock.exceptions import TaskLockError
from django_tasklock.locks.semaphore import ConcurrencyLimiter, check_limit
from django_tasklock.names import NameTemplate
from django_tasklock.types import LimiterInfo

F = TypeVar("F", bound=Callable[..., Any])

OnLimit = Literal["skip", "raise", "wait", "retry", "reject"]
"""What a call does when no permit is free. The last two postpone a message: only under Celery."""
WORDS = get_args(OnLimit)
LIMIT_REACHED = "limit_reached"
"""The reason of a call that is skipped because no permit is free."""


@dataclass(frozen=True, slots=True)
class PermitOptions:
    """The options of ``concurrency_limited``, checked once. ``label``: the name template, for messages."""

    label: str
    limit: int
    timeout: Timeout
    lease: LeaseTime
    on_conflict: OnLimit | None
    blocking_timeout: Duration | None
    on_unavailable: OnUnavailable | None
    release_connections: bool | None

    def __post_init__(self) -> None:
        """Raise ``TaskLockError`` for options that cannot work."""
        check_limit(self.limit)
        here = whose("concurrency_limited", self.label)
        check_release(here, self.release_connections)
        if self.on_conflict in ("queue", "coalesce"):
            raise TaskLockError(
                f"{here}: on_conflict={self.on_conflict!r} is for locks: a message is parked behind one holder, and"
                f" a limiter has {self.limit}; use 'retry', which also gives the worker back, or 'wait', which keeps"
                " the order"
            )
        if self.on_conflict is not None and self.on_conflict not in WORDS:
            known = ", ".join(map(repr, WORDS))
            raise TaskLockError(f"{here}: on_conflict must be one of {known}, not {self.on_conflict!r}")
        check_policy(here, self.on_unavailable)
        if self.blocking_timeout is not None:
            check_conflict(here, "wait" if self.on_conflict is None else self.on_conflict, self.blocking_timeout, None)

    def seconds_to_wait(self) -> Duration:
        """Return the seconds that ``"wait"`` waits, by default the timeout."""
        hold, _ = spans(self.timeout, self.lease, self.label)
        return self.blocking_timeout or hold / 1000

    def limiter(self, name: str, wait: Duration, kind: str) -> ConcurrencyLimiter:
        """Return a limiter of this name, counted as ``kind``."""
        return ConcurrencyLimiter(
            name,
            self.limit,
            timeout=self.timeout,
            lease=self.lease,
            blocking_timeout=wait,
            on_unavailable=self.on_unavailable,
            kind=kind,
        )


class PermitOfCall:
    """The limiter of a decorated function, by the arguments of a call that need not be made: ``function.limiter``."""

    def __init__(self, template: NameTemplate, limit: int, on_conflict: OnLimit | None = None) -> None:
        self.template = template
        self.limit = limit
        self.on_conflict = on_conflict

    def name(self, /, **arguments: Any) -> str:
        """Return its name for these arguments. Those that the name does not use may be left out."""
        if callable(self.template.template):
            return self.template.name((), arguments)
        parameters = self.template.signature.parameters.values()
        defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        return self.template.name_for(defaults | arguments)

    def info(self, /, **arguments: Any) -> LimiterInfo:
        """Return the members of the limiter of such a call. Raises ``BackendUnavailable``."""
        return ConcurrencyLimiter(self.name(**arguments), self.limit).info()


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
    label = name if isinstance(name, str) else getattr(name, "__qualname__", repr(name))
    options = PermitOptions(
        label, limit, timeout, lease, on_conflict, blocking_timeout, on_unavailable, release_connections
    )

    def decorate(function: F) -> F:
        check_decoratable(function)
        template = NameTemplate(name, function, prefix=get_settings().prefix)
        wait, counted_as = options.seconds_to_wait(), clean_kind(label)
        permit = PermitOfCall(template, limit, on_conflict)

        def new_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
            limiter = options.limiter(template.name(args, kwargs), wait, counted_as)
            return Call(
                limiter,
                on_conflict or "wait",
                wait=limiter.parameters.max_wait,
                release_connections=release_connections,
                busy=LIMIT_REACHED,
            )

        wrapper = wrap(function, new_call, template.signature, permit)
        wrapper.limiter = permit  # type: ignore[attr-defined]
        return wrapper

    return decorate
