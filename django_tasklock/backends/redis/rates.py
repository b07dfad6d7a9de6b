"""Rate limits in Redis or Valkey: one script and one round trip for each verb.

With the prefix ``task_lock:`` the limiter ``tavily`` is ``task_lock#rate:meta:tavily`` (a hash), and for each rate
``task_lock#rate:60000000:tavily`` (a list: slots and units, the newest first). Sorted sets are
``task_lock#rate:line:tavily`` (slots in the line) and ``task_lock#rate:free:tavily`` (slots given back). The sorted set
``task_lock#rates`` has the limiters by their last use, ``task_lock#rates:tavily`` the tenants of one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from django_tasklock.backends.contract.rates import (
    NEVER_AGAIN,
    Booked,
    Penalty,
    RateStore,
    Refused,
    Terms,
    Usage,
    WindowUnits,
    split_tenant,
)
from django_tasklock.backends.redis.script import Script, load

if TYPE_CHECKING:
    from django_tasklock.backends.redis import RedisBackend

VERBS = "reserve", "reserve_many", "resume", "cancel", "settle", "penalize", "pause", "adjust", "usage", "reset"
SCRIPTS = {verb: load(f"rate_{verb}") for verb in VERBS}
NAMES, TENANTS, TERMS = load("rate_names"), load("rate_tenants"), load("rate_terms")


class RedisRates(RateStore):
    """The rate limits of a ``RedisBackend``, on its connections."""

    scripts: Mapping[str, Script] = SCRIPTS

    def __init__(self, backend: RedisBackend) -> None:
        self.backend = backend

    @property
    def _root(self) -> str:
        return self.backend.layout.prefix.removesuffix(":") + "#rate"

    def run(self, terms: Terms, verb: str, *arguments: int) -> Any:
        root, rings = self._root, [rate.window for rate in terms.rates]
        limiter, tenant = split_tenant(terms.name)
        keys = [f"{root}:{part}:{terms.name}" for part in ("meta", "free", "line", *rings)]
        keys[3:3] = f"{root}s", f"{root}s:{limiter}"
        args: list[str | int] = [limiter, "" if tenant is None else terms.name, *terms.numbers(), *map(int, arguments)]
        reply, _ = self.backend.client.run(self.scripts[verb], keys, args, again=verb not in NEVER_AGAIN)
        return READ.get(verb, int)(reply)

    def names(self, limit: int = 1000, of: str = "") -> list[str]:
        index = f"{self._root}s:{of}" if of else f"{self._root}s"
        return [name.decode() for name in self.backend.client.run(NAMES, [index], [limit - 1])[0]]

    def count_tenants(self, names: Sequence[str]) -> Mapping[str, int]:
        if not names:
            return {}
        numbers = self.backend.client.run(TENANTS, [f"{self._root}s:{name}" for name in names])[0]
        return {name: number for name, number in zip(names, numbers, strict=True) if number}

    def terms(self, names: Sequence[str]) -> Mapping[str, Terms]:
        if not names:
            return {}
        texts = self.backend.client.run(TERMS, [f"{self._root}:meta:{name}" for name in names])[0]
        found = {name: Terms.from_text(name, text.decode()) for name, text in zip(names, texts, strict=True)}
        return {name: terms for name, terms in found.items() if terms is not None}


def _booking(reply: Sequence[int]) -> Booked | Refused:
    if not reply[0]:
        return Refused(reply[1])
    _, slot, wait, edition, total_pause, time, in_line = reply
    return Booked(slot, wait, edition, total_pause, time, in_line == 1)


def _usage(reply: Sequence[int]) -> Usage:
    time, free, following, tail, paused, share, refused, *numbers = reply
    rates = tuple(map(WindowUnits._make, zip(*[iter(numbers)] * 3, strict=True)))
    return Usage(time, rates, free, following, tail, paused, share, refused)


READ: dict[str, Callable[[Any], object]] = {
    "reserve": _booking,
    "resume": _booking,
    "reserve_many": lambda reply: list(map(_booking, reply)),
    "penalize": Penalty._make,
    "usage": _usage,
}
"""How the replies of a verb are read; those of the others are 1 or 0."""
