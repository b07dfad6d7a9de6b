"""``rate_limited``: keep the calls of a function to a rate limit."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, TypeVar, Unpack

from django_tasklock.conf import Duration, Settings, get_settings
from django_tasklock.context import ensure_enclosing_held
from django_tasklock.db.connections import Scope
from django_tasklock.decorators.concurrency import PermitOfCall
from django_tasklock.decorators.locks import Locked
from django_tasklock.decorators.wrapping import check_decoratable, check_has_begun, is_async, layers_of
from django_tasklock.exceptions import TaskLockError
from django_tasklock.host import host
from django_tasklock.names import NameTemplate
from django_tasklock.rates.limiter import RateLimiter
from django_tasklock.rates.options import LimiterOptions
from django_tasklock.rates.reservation import Cost, Reservation, as_current

F = TypeVar("F", bound=Callable[..., Any])


class LimitOfCall:
    """The rate limiter of a decorated function, by the arguments of a call: ``function.rate_limit``.

    A task queue that runs the function itself books at the ``limiter`` of a call, for its ``cost``.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        limiter: Callable[[], RateLimiter],
        tenant: str | Callable[..., object] | None,
        cost: Cost | Callable[..., Cost],
        blocking_timeout: Duration | None,
    ) -> None:
        self.name = name
        if isinstance(blocking_timeout, timedelta):
            blocking_timeout = blocking_timeout.total_seconds()
        self.blocking_timeout = blocking_timeout
        """The longest that a call waits, in seconds; ``None``: the limiter's ``max_wait``."""
        self._limiter = limiter
        self._cost = cost
        self._tenant = NameTemplate(tenant, function) if isinstance(tenant, str) else tenant

    def check(self) -> None:
        """Raise ``TaskLockError`` for options with which no call can be made."""
        limiter = self._limiter() if self._tenant is None else self._limiter().tenant(None)
        limiter.check_call(self.blocking_timeout, 1 if callable(self._cost) else self._cost)

    def limiter(self, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> RateLimiter:
        """Return the limiter, or the tenant's limiter, of a call with these arguments, by the current settings."""
        limiter = self._limiter()
        if self._tenant is None:
            return limiter
        if isinstance(self._tenant, NameTemplate):
            return limiter.tenant(self._tenant.name(args, kwargs or {}))
        return limiter.tenant(self._tenant(*args, **kwargs or {}))

    def cost(self, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Cost:
        """Return the units of a call with these arguments."""
        return self._cost(*args, **kwargs or {}) if callable(self._cost) else self._cost

    def acquire(self, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Reservation:
        """Wait until a call may be made."""
        return self.limiter(args, kwargs).acquire(self.blocking_timeout, cost=self.cost(args, kwargs))

    async def aacquire(self, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Reservation:
        """Do what ``acquire`` does, for coroutines."""
        return await self.limiter(args, kwargs).aacquire(self.blocking_timeout, cost=self.cost(args, kwargs))


def limiter_source(name: str, rates: tuple[Any, ...], options: LimiterOptions) -> Callable[[], RateLimiter]:
    """Return a function that returns the limiter of these options. It is made once, or once for each settings."""
    if rates:
        limiter = RateLimiter(name, *rates, **options)
        return lambda: limiter
    by_settings: list[tuple[Settings, RateLimiter]] = []

    def found() -> RateLimiter:
        settings = get_settings()
        if not by_settings or by_settings[0][0] is not settings:
            by_settings[:] = [(settings, RateLimiter(name, **options))]
        return by_settings[0][1]

    return found


def refuse_second_limit(called: str, functions: Iterable[Any], *more: str) -> None:
    """Raise ``TaskLockError`` if these functions, and those that they wrap, have more than one limit.

    A call would wait for them one after the other: by the time of its turn at the last one, the first is counted wrong.
    ``more``: the names of further limits.
    """
    layers = (layer for function in functions for layer in layers_of(function))
    found = (getattr(layer, "rate_limit", None) for layer in layers)
    names = [*more, *(one.name for one in dict.fromkeys(found) if isinstance(one, LimitOfCall))]
    if len(names) > 1:
        raise TaskLockError(
            f"{called} has two rate limits, {names[0]!r} and {names[1]!r}: while a call waits for the second, its turn"
            f" at the first passes. Let it wait for both at once:"
            f" rate_limited(RateLimiter({names[0]!r}).together_with(RateLimiter({names[1]!r})), cost=...)",
            name=names[0],
        )


def rate_limited(
    name: str | RateLimiter,
    *rates: Any,
    tenant: str | Callable[..., object] | None = None,
    cost: Cost | Callable[..., Cost] = 1,
    blocking_timeout: Duration | None = None,
    **options: Unpack[LimiterOptions],
) -> Callable[[F], F]:
    """Make calls of the decorated function, or coroutine function, wait until a rate limit allows them.

    ``rates`` and ``options`` are those of ``RateLimiter``, unless ``name`` is one itself: several limits of a function
    are ``requests.together_with(tokens)``. ``tenant``: a template over the arguments, ``"{user}"``, or a callable that
    takes them. ``cost``: the units of a call, as a dict by limiter, or a callable that takes the arguments.
    ``blocking_timeout``: the longest that a call waits, in seconds.

    Raises ``RateLimitExceeded`` instead of calling the function if its turn would come later, ``TaskLockError`` at
    decoration for options that cannot work.
    """
    if isinstance(name, RateLimiter):
        if rates or options:
            raise TaskLockError(f"rate_limited: {name!r} has its rates and options already", name=name.name)
        made = name
        return _decorator(lambda: made, made.name, tenant, cost, blocking_timeout, known=True)
    if callable(name):
        raise TaskLockError("write @rate_limited('tavily', '100/m'), with a name")
    if "{" in name:
        raise TaskLockError(
            f"the name of a rate limiter, {name!r}, is no template: one limit for all calls would have it;"
            " for a quota each write tenant='{user}', tenants='1/m'",
            name=name,
        )
    source = limiter_source(name, rates, options)
    # Those in the settings are checked when they are used: the settings may not be complete yet.
    return _decorator(source, name, tenant, cost, blocking_timeout, known=bool(rates))


def _decorator(
    limiter: Callable[[], RateLimiter],
    name: str,
    tenant: str | Callable[..., object] | None,
    cost: Cost | Callable[..., Cost],
    blocking_timeout: Duration | None,
    known: bool,
) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        check_decoratable(function)
        called = getattr(function, "__qualname__", repr(function))
        for layer in layers_of(function):
            if isinstance(getattr(layer, "lock", None), Locked) or isinstance(
                getattr(layer, "limiter", None), PermitOfCall
            ):
                raise TaskLockError(
                    f"{called}: put rate_limited below the lock or the concurrency limiter, next to the function: a"
                    " reservation is for the call, not for a call that is skipped or has to wait",
                    name=name,
                )
        refuse_second_limit(called, [function], name)
        limited = LimitOfCall(function, name, limiter, tenant, cost, blocking_timeout)
        if known:
            limited.check()

        if is_async(function):

            @functools.wraps(function)
            async def wrapper(*args: Any, **kwargs: Any) -> Any:
                # A task or a request closes the connections of its thread; nothing else closes these.
                async with Scope() as scope:
                    reservation = await limited.aacquire(args, kwargs)
                    await scope.aclose_idle()
                    ensure_enclosing_held()
                    with as_current(reservation):
                        result = await function(*args, **kwargs)
                    check_has_begun(function, result)
                    return result

        else:

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                reservation = host().take_turn(limited, args, kwargs) or limited.acquire(args, kwargs)
                ensure_enclosing_held()
                with as_current(reservation):
                    result = function(*args, **kwargs)
                check_has_begun(function, result)
                return result

        wrapper.rate_limit = limited  # type: ignore[attr-defined]
        return wrapper  # type: ignore[return-value]

    return decorate
