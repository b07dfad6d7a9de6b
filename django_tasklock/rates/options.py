"""The options of a rate limiter, from ``TASKLOCK["RATE_LIMITS"]`` or the arguments of ``RateLimiter``."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, get_args

from django_tasklock.backends.contract.rates import TENANT, Rate, Terms
from django_tasklock.conf import RATE_LIMITS_HINT, Duration
from django_tasklock.exceptions import TaskLockError
from django_tasklock.names import clean
from django_tasklock.rates.notation import microseconds, parse_rates

OutagePolicy = Literal["closed", "open"]
"""What a limiter does while the store is down: refuse calls, or allow them."""


class LimiterOptions(TypedDict, total=False):
    """The options of ``RateLimiter``; one that is ``None`` has its default."""

    tenants: Any
    margin: Duration | None
    max_wait: Duration | None
    on_unavailable: OutagePolicy | None
    adaptive: bool | float | None


OPTIONS = ("rates", *LimiterOptions.__annotations__)
"""The keys of a dict in ``RATE_LIMITS``."""
_HOUR = 3_600_000_000
_SLACK = 1_000_000  # between a caller's clock and the store's answer
LEAST_SHARE = 0.1  # of the limit, for ``adaptive=True``


@dataclass(frozen=True)
class LimitOptions:
    """The validated options of a rate limiter. Durations are microseconds."""

    rates: tuple[Rate, ...]
    tenants: tuple[Rate, ...] = ()
    max_wait: int = _HOUR
    on_unavailable: OutagePolicy = "closed"
    min_share: int = 0
    margin: float | None = None

    def terms(self, name: str, rates: tuple[Rate, ...] = ()) -> Terms:
        """Return these options as terms for a store. ``rates``: those of a tenant."""
        return Terms(name, rates or self.rates, min_share=self.min_share, horizon=self.max_wait)


def parse_options(name: str, given: object, **more: Any) -> LimitOptions:
    """Return the validated options of the limiter ``name``.

    ``given``: rates, or a dict of options. ``more``: further options; those that are ``None`` are ignored. Raises
    ``TaskLockError`` for options that cannot work.
    """
    clean(name)
    if TENANT in name:
        raise TaskLockError(f"a limiter's name must not contain {TENANT!r}: {name!r}", name=name)
    options: dict[str, Any] = dict(given) if isinstance(given, Mapping) else {"rates": given}
    options |= {key: value for key, value in more.items() if key not in options or value is not None}
    for key in options:
        if key not in OPTIONS:
            near = difflib.get_close_matches(str(key).lower(), OPTIONS, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(OPTIONS)}"
            raise TaskLockError(f"the rate limit {name!r} has no option {key!r}; {hint}", name=name)
    try:
        return _validated(name, **{key: value for key, value in options.items() if value is not None})
    except TaskLockError as error:
        raise TaskLockError(f"rate limit {name!r}: {error}", name=name) from None


def _validated(
    name: str,
    rates: object = None,
    tenants: object = None,
    margin: Any = None,
    max_wait: object = None,
    on_unavailable: Any = "closed",
    adaptive: Any = False,
) -> LimitOptions:
    if rates is None:
        raise TaskLockError("it needs a rate, e.g. '100/m'")
    _check_choice("on_unavailable", on_unavailable, get_args(OutagePolicy))
    min_share = LEAST_SHARE if adaptive is True else adaptive
    if adaptive is not False and not (isinstance(min_share, float) and 0.001 <= min_share < 1):
        raise TaskLockError(f"adaptive must be True, False or the least share of the limit (0.1), not {adaptive!r}")
    all_share = parse_rates(rates, margin=margin, name=name)
    of_each = () if tenants is None else parse_rates(tenants, margin=margin, name=name)
    return LimitOptions(
        rates=all_share,
        tenants=of_each,
        max_wait=_default_max_wait(*all_share, *of_each) if max_wait is None else microseconds(max_wait, "max_wait"),
        on_unavailable=on_unavailable,
        min_share=round(min_share * 1_000_000),
        margin=margin,
    )


def _default_max_wait(*rates: Rate) -> int:
    """Return the default of ``max_wait``: the next slot of an hourly limit is an hour and a margin away."""
    return _HOUR + max((rate.margin for rate in rates if rate.window <= _HOUR), default=0) + _SLACK


def _check_choice(what: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        near = difflib.get_close_matches(str(value).lower(), known, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise TaskLockError(f"{what} must be one of {', '.join(map(repr, known))}, not {value!r}{hint}")


def check_share(share: float, name: str | None = None) -> None:
    """Raise ``TaskLockError`` unless ``share`` is more than 0 and at most 1. ``name``: the limiter's."""
    if type(share) not in (int, float) or not 0.000_001 <= share <= 1:
        raise TaskLockError(f"a share of the limit is more than 0 and at most 1, not {share!r}", name=name)


def rate_problems(given: Mapping[Any, Any]) -> list[tuple[str, str]]:
    """Return the problems of ``RATE_LIMITS``, each as a message and a hint."""
    found = []
    for name, value in given.items():
        try:
            parse_options(name, value)
        except TaskLockError as error:
            found.append((f"TASKLOCK['RATE_LIMITS'][{name!r}]: {error}.", RATE_LIMITS_HINT))
    return found
