"""The notation of rates, ``"100/m"``, and of pushbacks, parsed into the values for stores."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable
from datetime import UTC, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from django_tasklock.backends.contract.rates import Pushback, Rate
from django_tasklock.exceptions import TaskLockError

UNITS = {
    "ms": 1_000,
    "s": 1_000_000, "sec": 1_000_000, "second": 1_000_000, "seconds": 1_000_000,
    "m": 60_000_000, "min": 60_000_000, "minute": 60_000_000, "minutes": 60_000_000,
    "h": 3_600_000_000, "hour": 3_600_000_000, "hours": 3_600_000_000,
    "d": 86_400_000_000, "day": 86_400_000_000, "days": 86_400_000_000,
}  # fmt: skip
_RATE = re.compile(
    r"\s*(\d{1,15}(?:_\d{1,15}){0,15})\s*(?:/|per\b)\s*(\d{1,15}(?:\.\d+)?)?\s*([a-z]+)\s*", re.IGNORECASE
)
_MAX_LIMIT = 10_000  # units: a store keeps each booking of a window
_LONGEST_WINDOW = 366 * 86_400_000_000
_SHORTEST_WINDOW = 1_000
_LEAST_DEFAULT_MARGIN = 50_000


def microseconds(value: object, what: str, *, name: str | None = None, zero: bool = False) -> int:
    """Return a duration in whole microseconds. Raises ``TaskLockError`` unless it is finite and at least a millisecond.

    ``zero``: it may also be shorter, or zero.
    """
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not math.isfinite(seconds):
        raise TaskLockError(f"{what} must be seconds (int, float) or a timedelta, not {value!r}", name=name)
    if seconds < 0 or (not zero and seconds < 0.001):
        least = "not be negative" if zero else "be at least 0.001 seconds"
        raise TaskLockError(f"{what} must {least}, not {value!r}", name=name)
    if seconds * 1_000_000 > 10 * _LONGEST_WINDOW:
        raise TaskLockError(f"{what} may be ten years at most, not {value!r}", name=name)
    return round(seconds * 1_000_000)


def parse_rates(given: object, *, margin: object = None, name: str | None = None) -> tuple[Rate, ...]:
    """Parse ``"100/m"``, ``"10/s, 5000/d"``, ``"30 per 5 min"``, ``(100, 60)`` or a list of these.

    ``margin``: seconds; by default 50 ms or 0.2 % of the window, whichever is more. Raises ``TaskLockError`` for an
    invalid rate.
    """
    rates = tuple(dict.fromkeys(_parse_each(given, margin, name)))
    if not rates:
        raise TaskLockError(f"no rate in {given!r}: write e.g. '100/m'", name=name)
    windows = [rate.window for rate in rates]
    if len(set(windows)) < len(windows):
        raise TaskLockError(f"two rates for one window in {given!r}: the lower one is enough", name=name)
    return rates


def _parse_each(given: object, margin: object, name: str | None) -> Iterable[Rate]:
    if isinstance(given, Rate):
        yield given
    elif isinstance(given, str):
        for text in given.split(","):
            yield _parse_rate(text, margin, name)
    elif isinstance(given, tuple) and len(given) == 2 and not isinstance(given[0], str | tuple | Rate):
        limit, window = given
        if isinstance(limit, bool) or not isinstance(limit, int):
            raise TaskLockError(f"the limit in {given!r} must be an int", name=name)
        yield _checked_rate(limit, microseconds(window, "the window", name=name), margin, given, name)
    elif isinstance(given, list | tuple):
        for one in given:
            yield from _parse_each(one, margin, name)
    else:
        raise TaskLockError(f"a rate is written '100/m' or (100, 60), not {given!r}", name=name)


def _parse_rate(text: str, margin: object, name: str | None) -> Rate:
    found = _RATE.fullmatch(text)
    if found is None:
        raise TaskLockError(f"{text!r} is no rate: write e.g. '100/m', '10/s', '5000/d' or '30/5m'", name=name)
    number, times, unit = found.groups()
    unit = unit.lower()
    if unit not in UNITS:
        near = difflib.get_close_matches(unit, UNITS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else "known: ms, s, m, h, d"
        raise TaskLockError(f"{text!r} has the unknown unit {unit!r}; {hint}", name=name)
    return _checked_rate(int(number), round(float(times or 1) * UNITS[unit]), margin, text, name)


def _checked_rate(limit: int, window: int, margin: object, given: object, name: str | None) -> Rate:
    if limit < 1:
        raise TaskLockError(f"the limit in {given!r} must be 1 or more", name=name)
    if limit > _MAX_LIMIT:
        raise TaskLockError(
            f"the limit in {given!r} is above {_MAX_LIMIT:,} in a window: write a shorter window ('600000/m' is"
            " '10000/s'), or count greater units ('100/m' and cost=2 for 2,000 tokens of 100,000)",
            name=name,
        )
    if not _SHORTEST_WINDOW <= window <= _LONGEST_WINDOW:
        raise TaskLockError(f"the window in {given!r} must be 0.001 seconds to 366 days", name=name)
    if margin is None:
        return Rate(limit, window, max(_LEAST_DEFAULT_MARGIN, window // 500))
    return Rate(limit, window, microseconds(margin, "margin", name=name))


def parse_retry_after(retry_after: Any, *, name: str | None = None) -> Pushback:
    """Parse a ``Retry-After``: seconds as a number or as text, a timedelta, an aware datetime or an HTTP date.

    A date in the past means no pause. Raises ``TaskLockError`` for any other value.
    """
    value = retry_after
    if isinstance(value, bytes):
        value = value.decode("latin-1")
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            try:
                value = parsedate_to_datetime(value)
            except (TypeError, ValueError):
                raise TaskLockError(
                    f"retry_after must be seconds or an HTTP date, not {retry_after!r:.80}", name=name
                ) from None
            value = value if value.tzinfo else value.replace(tzinfo=UTC)
    if hasattr(value, "timestamp") and getattr(value, "tzinfo", None) is not None:
        return Pushback(int(value.timestamp() * 1_000_000), absolute=True)
    return Pushback(microseconds(value, "retry_after", name=name, zero=True))
