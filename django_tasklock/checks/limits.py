"""Checks whether the configured rate limits are supported by the store, and consistent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django.core import checks

from django_tasklock.backends.contract.rates import Rate
from django_tasklock.checks.settings import valid_settings
from django_tasklock.checks.store import valid_backend
from django_tasklock.exceptions import TaskLockError
from django_tasklock.rates.options import LimitOptions, parse_options


def check_limits_supported(app_configs: Any = None, **kwargs: Any) -> list[checks.CheckMessage]:
    """Report E006: rate limits are configured, but the store does not support them. E001 reports invalid ones."""
    valid = valid_backend()
    if valid is None or not valid[0].RATE_LIMITS:
        return []
    settings, backend = valid
    try:
        _ = backend.rates
    except TaskLockError:
        names = ", ".join(map(repr, sorted(settings.RATE_LIMITS)))
        return [
            checks.Error(
                f"TASKLOCK['RATE_LIMITS'] has {names}, and {type(backend).__name__} keeps no rate limits: every call"
                " of these will fail.",
                hint="Point TASKLOCK['LOCATION'] at Redis, or set TASKLOCK['BACKEND'] to the database backend.",
                id="tasklock.E006",
            )
        ]
    return []


def check_limits(app_configs: Any = None, **kwargs: Any) -> list[checks.CheckMessage]:
    """Report W016: a part of a rate limit that has no effect because of another part."""
    settings = valid_settings()
    if settings is None:
        return []
    return [
        checks.Warning(f"TASKLOCK['RATE_LIMITS'][{name!r}]: {what}", hint=hint, id="tasklock.W016")
        for name, given in settings.RATE_LIMITS.items()
        for what, hint in _ineffective_parts(given, parse_options(name, given))
    ]


def _ineffective_parts(given: object, limit: LimitOptions) -> Iterator[tuple[str, str]]:
    for whose, rates, others in (
        ("the rate", limit.rates, limit.rates),
        ("a tenant's", limit.tenants, limit.tenants),
        ("a tenant's", limit.tenants, limit.rates),
    ):
        for rate in rates:
            for other in others:
                if other is not rate and (max_calls := _max_calls(other, rate.window)) < rate.limit:
                    what = f"{whose} {rate} is never reached: {other} allows at most {max_calls} calls in that time."
                    yield what, "Remove the greater one, or correct one of the two."
    options = given if isinstance(given, Mapping) else {}
    if "workers" in options and limit.on_unavailable != "local":
        yield f"workers has no effect if on_unavailable is {limit.on_unavailable!r}.", "Is 'local' meant?"
    if "grace" in options and limit.on_unavailable == "closed":
        yield "grace has no effect if on_unavailable is 'closed'.", "Is 'open' or 'local' meant?"


def _max_calls(rate: Rate, window: int) -> int:
    """Return the most calls that ``rate`` lets through within ``window``."""
    return -(-window // rate.window) * rate.limit
