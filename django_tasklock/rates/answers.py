"""What an overloaded service answers, read leniently: for how long it asks its callers to stop.

Services disagree about the header and its form, and while one is overloaded, its answer may have neither. So nothing
that is in an answer raises here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from django_tasklock.backends.contract.rates import Pushback
from django_tasklock.exceptions import TaskLockError
from django_tasklock.rates.notation import UNITS, parse_retry_after
from django_tasklock.types import monotonic

MILLISECONDS = "retry-after-ms"
HEADERS = (
    MILLISECONDS,
    "retry-after",
    "x-ratelimit-reset-after",
    "ratelimit-reset",
    "x-ratelimit-reset",
    "x-rate-limit-reset",
)
"""The headers that say so, the most exact one first. In the last ones some services have a time, others seconds."""

_LEAST_TIMESTAMP = 1_000_000_000  # a number from here on is seconds since 1970; from a thousand times it on, ms
LONGEST_BACKOFF = 60.0  # seconds
_PART = r"(\d+(?:\.\d+)?)\s*([a-z]+)\s*"


def read_pause(response: Any, *, name: str) -> tuple[Pushback | None, str]:
    """Return for how long a response asks to stop, and the header that says so.

    ``None`` if it does not say, or nothing that can be understood; then the text says what it has instead. Raises
    ``TaskLockError`` for an object that is no response.
    """
    headers: Any = getattr(response, "headers", None)
    if not hasattr(headers, "items"):
        raise TaskLockError(
            f"rate limit {name!r}: penalize_from() takes a response with .headers, as of requests, httpx and aiohttp,"
            f" not {response!r:.80}; penalize() takes seconds",
            name=name,
        )
    odd = []
    given = _lowered(headers)
    for header in HEADERS:
        if header in given:
            said = f"{header}: {given[header]!r:.80}"
            pause = _parse(given[header].strip(), header)
            if pause is not None:
                return pause, said
            odd.append(said)
    return None, ", ".join(odd) or "it has no Retry-After"


def _lowered(headers: Mapping[Any, Any]) -> dict[str, str]:
    return {_text(key).lower(): _text(value) for key, value in headers.items()}


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _parse(value: str, header: str) -> Pushback | None:
    try:
        found = _read(value, header)
        return None if found is None else parse_retry_after(found)
    except (ArithmeticError, LookupError, OSError, TaskLockError, TypeError, ValueError):  # no unit, no date, too large
        return None


def _read(value: str, header: str) -> float | datetime | None:
    try:
        number = float(value)
    except ValueError:
        if re.fullmatch(f"(?:{_PART})+", value.lower()):  # 6m0s, 1 minute
            return sum(float(amount) * UNITS[unit] for amount, unit in re.findall(_PART, value.lower())) / 1_000_000
        try:
            time = datetime.fromisoformat(value)
        except ValueError:
            time = parsedate_to_datetime(value)
        return time if time.tzinfo else time.replace(tzinfo=UTC)
    if not math.isfinite(number) or number < 0:
        return None
    if header == MILLISECONDS:
        return number / 1000
    if number < _LEAST_TIMESTAMP:
        return number
    return datetime.fromtimestamp(number / 1000 if number >= 1000 * _LEAST_TIMESTAMP else number, UTC)


_backoffs: dict[str, tuple[float, float]] = {}  # by limiter: the seconds of the last pause, and its end


def next_backoff(name: str) -> float:
    """Return the seconds to pause after an answer that does not say how long: 1, doubled each time, up to a minute.

    Answers to calls that were under way at once count once, and a minute without any begins anew.
    """
    now = monotonic()
    seconds, ends = _backoffs.get(name, (1.0, -math.inf))
    if now >= ends + LONGEST_BACKOFF:
        seconds = 1.0
    elif now >= ends:
        seconds = min(2 * seconds, LONGEST_BACKOFF)
    _backoffs[name] = seconds, now + seconds
    return seconds


def forget() -> None:
    """Forget all pauses."""
    _backoffs.clear()
