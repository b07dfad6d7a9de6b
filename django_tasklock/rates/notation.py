"""Rates as people write them, ``"100/m"``, and as a store is told them. Pure functions and values.

Inside the storage layer times are whole microseconds.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable
from datetime import UTC, timedelta
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any, Literal, NamedTuple, get_args

from django_tasklock.exceptions import TaskLockError

__all__ = ["ALGORITHMS", "Algorithm", "Pushback", "Rate", "Terms", "microseconds", "parse", "pushback"]

Algorithm = Literal["window", "paced", "bucket", "counter"]
"""How calls are let through: see ``RateLimiter``."""
ALGORITHMS = get_args(Algorithm)
"""Those words."""

_UNITS = {
    "ms": 1_000,
    "s": 1_000_000, "sec": 1_000_000, "second": 1_000_000, "seconds": 1_000_000,
    "m": 60_000_000, "min": 60_000_000, "minute": 60_000_000, "minutes": 60_000_000,
    "h": 3_600_000_000, "hour": 3_600_000_000, "hours": 3_600_000_000,
    "d": 86_400_000_000, "day": 86_400_000_000, "days": 86_400_000_000,
}  # fmt: skip
_WRITTEN = re.compile(r"\s*(\d[\d_]*)\s*(?:/|per\b)\s*(\d+(?:\.\d+)?)?\s*([a-z]+)\s*", re.IGNORECASE)
_MOST = 1_000_000_000  # units: what a store's arithmetic takes
_LONGEST = 366 * 86_400_000_000
_SHORTEST = 1_000
_SINGLE = 1000  # bookings a store remembers one by one; with a greater limit they share a hundred cells
_LEAST_MARGIN = 50_000


class Rate(NamedTuple):
    """At most ``limit`` units in any ``window``; a call may use its place up to ``margin`` late."""

    limit: int
    window: int
    margin: int

    @property
    def cell(self) -> int:
        """Within how many microseconds bookings count as one moment, its end: of a great limit not each is kept."""
        return 1 if self.limit <= _SINGLE else -(-self.window // 100)

    def __str__(self) -> str:
        for unit in ("d", "h", "m", "s"):
            if self.window == _UNITS[unit]:
                return f"{self.limit}/{unit}"
        return f"{self.limit}/{self.window / 1_000_000:g}s"


class Terms(NamedTuple):
    """All a store must know of a limiter. ``floor``: the least share of the limit, in millionths; 0: not adaptive."""

    name: str
    rates: tuple[Rate, ...]
    algorithm: Algorithm = "window"
    burst: int = 0
    """Units a bucket holds; 0: a tenth of the limit."""
    cold_wait: bool = False
    """Whether a store that knows nothing of the limiter lets one window pass first."""
    floor: int = 0
    horizon: int = 3_600_000_000
    """How far ahead a place may be booked."""

    def burst_of(self, rate: Rate) -> int:
        """Units that may go at once."""
        if self.algorithm == "bucket":
            return self.burst or max(1, rate.limit // 10)
        return 1

    @property
    def longest(self) -> int:
        """The longest window, its margin included: after so long nothing of the past counts."""
        return max(rate.window + rate.margin for rate in self.rates)

    @property
    def margin(self) -> int:
        """How late a place may be used, by the strictest of the rates."""
        first, *others = self.rates
        return min(first.margin, *[rate.margin for rate in others]) if others else first.margin

    @property
    def pace(self) -> int:
        """How often the limit may be adapted: once in the shortest window."""
        return max(1_000_000, min(rate.window for rate in self.rates))

    def words(self) -> list[str | int]:
        """All of it but the name, as a script is told it."""
        found: list[str | int] = [
            "tat" if self.algorithm in ("paced", "bucket") else self.algorithm,
            "wait" if self.cold_wait else "",
            self.floor,
            self.horizon,
            self.longest,
            self.pace,
        ]
        for rate in self.rates:
            found += [rate.limit, rate.window, rate.margin, rate.cell, self.burst_of(rate)]
        return found

    def text(self) -> str:
        """What a store keeps of it, for those who look at the limiter and do not know it: see ``read``."""
        return _text(self)

    def rule(self) -> str:
        """The part of ``text`` that all callers must have in common: how far ahead one books is his own affair."""
        return _rule(self)

    def under(self, rule: str) -> Terms:
        """These, with what all have in common replaced by ``rule``; as they are if it cannot be read."""
        found = Terms.read(self.name, rule)
        return self if found is None else found._replace(cold_wait=self.cold_wait, horizon=self.horizon)

    @classmethod
    def read(cls, name: str, text: str) -> Terms | None:
        """What ``text`` was made of; ``None`` if it is none. A bucket of one unit is read as paced, which it is."""
        try:
            algorithm, cold, *rest = text.split(" ")
            floor, horizon, *numbers = map(int, rest)
            size = 4 if algorithm == "tat" else 3
            parts = [numbers[start : start + size] for start in range(0, len(numbers), size)]
            rates = tuple(Rate(limit, window, margin) for limit, window, margin, *_burst in parts)
        except ValueError:
            return None
        bursts = [part[-1] for part in parts]
        usual = [max(1, rate.limit // 10) for rate in rates]
        if algorithm == "tat":
            algorithm = "paced" if all(burst == 1 for burst in bursts) else "bucket"
        if algorithm not in ALGORITHMS or not rates:
            return None
        burst = bursts[0] if algorithm == "bucket" and bursts != usual else 0
        return cls(name, rates, algorithm, burst, cold == "wait", floor, horizon)  # type: ignore[arg-type]


@lru_cache(maxsize=256)
def _text(terms: Terms) -> str:
    algorithm, cold, floor, horizon, *_rest = terms.words()
    found = [algorithm, cold, floor, horizon]
    for rate in terms.rates:
        found += rate
        if algorithm == "tat":
            found.append(terms.burst_of(rate))
    return " ".join(map(str, found))


@lru_cache(maxsize=256)
def _rule(terms: Terms) -> str:
    return _text(terms._replace(cold_wait=False, horizon=0))


class Pushback(NamedTuple):
    """How long to stop: microseconds from now, or until that time (since 1970)."""

    amount: int
    absolute: bool = False


def microseconds(value: object, what: str, *, name: str | None = None, zero: bool = False) -> int:
    """A duration as whole microseconds; ``TaskLockError`` if it is not a finite one, or not positive."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not math.isfinite(seconds):
        raise TaskLockError(f"{what} must be seconds (int, float) or a timedelta, not {value!r}", name=name)
    if seconds < 0 or (not zero and seconds < 0.001):
        least = "not be negative" if zero else "be at least 0.001 seconds"
        raise TaskLockError(f"{what} must {least}, not {value!r}", name=name)
    if seconds * 1_000_000 > 10 * _LONGEST:
        raise TaskLockError(f"{what} may be ten years at most, not {value!r}", name=name)
    return round(seconds * 1_000_000)


def parse(given: object, *, margin: object = None, name: str | None = None) -> tuple[Rate, ...]:
    """``"100/m"``, ``"10/s, 5000/d"``, ``"30 per 5 min"``, ``(100, 60)`` or several of these.

    ``margin``: seconds; by default 50 ms or 0.2 % of the window, whichever is more. Raises
    ``TaskLockError`` that says what is wrong.
    """
    rates = tuple(dict.fromkeys(_rates(given, margin, name)))
    if not rates:
        raise TaskLockError(f"no rate in {given!r}: write e.g. '100/m'", name=name)
    windows = [rate.window for rate in rates]
    if len(set(windows)) < len(windows):
        raise TaskLockError(f"two rates for one window in {given!r}: the lower one is enough", name=name)
    return rates


def _rates(given: object, margin: object, name: str | None) -> Iterable[Rate]:
    if isinstance(given, Rate):
        yield given
    elif isinstance(given, str):
        for text in given.split(","):
            yield _written(text, margin, name)
    elif isinstance(given, tuple) and len(given) == 2 and not isinstance(given[0], str | tuple | Rate):
        limit, window = given
        if isinstance(limit, bool) or not isinstance(limit, int):
            raise TaskLockError(f"the limit in {given!r} must be an int", name=name)
        yield _rate(limit, microseconds(window, "the window", name=name), margin, given, name)
    elif isinstance(given, list | tuple):
        for one in given:
            yield from _rates(one, margin, name)
    else:
        raise TaskLockError(f"a rate is written '100/m' or (100, 60), not {given!r}", name=name)


def _written(text: str, margin: object, name: str | None) -> Rate:
    found = _WRITTEN.fullmatch(text)
    if found is None:
        raise TaskLockError(f"{text!r} is no rate: write e.g. '100/m', '10/s', '5000/d' or '30/5m'", name=name)
    number, times, unit = found.groups()
    unit = unit.lower()
    if unit not in _UNITS:
        near = difflib.get_close_matches(unit, _UNITS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else "known: ms, s, m, h, d"
        raise TaskLockError(f"{text!r} has the unknown unit {unit!r}; {hint}", name=name)
    return _rate(int(number), round(float(times or 1) * _UNITS[unit]), margin, text, name)


def _rate(limit: int, window: int, margin: object, given: object, name: str | None) -> Rate:
    if not 1 <= limit <= _MOST:
        raise TaskLockError(f"the limit in {given!r} must be 1 to {_MOST:,}", name=name)
    if not _SHORTEST <= window <= _LONGEST:
        raise TaskLockError(f"the window in {given!r} must be 0.001 seconds to 366 days", name=name)
    if margin is None:
        return Rate(limit, window, max(_LEAST_MARGIN, window // 500))
    return Rate(limit, window, microseconds(margin, "margin", name=name))


def pushback(retry_after: Any, *, name: str | None = None) -> Pushback:
    """What a ``Retry-After`` says: seconds, also as text, a timedelta, an aware datetime or an HTTP date.

    A date that has passed means no pause. Raises ``TaskLockError`` for anything else.
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
