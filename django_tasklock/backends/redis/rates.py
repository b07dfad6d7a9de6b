"""Rate limits in Redis or Valkey: one script per operation, one round trip.

With the prefix ``task_lock:`` the limiter ``tavily`` is ``task_lock#rate:meta:tavily`` (a hash), and for each rate
``task_lock#rate:60000000:tavily`` (a list: times and units, the newest first). Sorted sets are
``task_lock#rate:line:tavily`` (slots in the line), ``task_lock#rate:free:tavily`` (slots given back),
and ``task_lock#rate:gone:tavily`` (the numbers of slots given back and booked again). The sorted set
``task_lock#rates`` has the limiters by their last use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

from django_tasklock.backends.contract.rates import (
    Booked,
    Penalty,
    Pushback,
    RateStore,
    Refused,
    Terms,
    Usage,
    WindowUnits,
)
from django_tasklock.backends.redis.script import Script, bulk, load
from django_tasklock.exceptions import BackendUnavailable

if TYPE_CHECKING:
    from django_tasklock.backends.redis import RedisBackend

LUA = resources.files("django_tasklock.backends") / "lua"
VERBS = (
    "reserve", "reserve_many", "resume", "exchange", "cancel", "settle", "penalize", "pause", "adjust", "usage",
    "reset",
)  # fmt: skip

SPACED, SOON, WILL_RESUME = "spaced", "soon", "will_resume"
BATCH_SIZE = 100  # slots that one script books


def body_of(verb: str) -> str:
    """Return the text of the script ``rate_<verb>.lua``."""
    return load(f"rate_{verb}", 0, 0).body


NAMES = Script((LUA / "rate_names.lua").read_text("utf-8"), 2, 1)
TERMS = Script((LUA / "rate_terms.lua").read_text("utf-8"), 1, 1)


class EncodedTerms(NamedTuple):
    """The encoded parts of a command that depend on the limiter alone."""

    keys: bytes
    terms: bytes
    size: int
    """The number of keys and arguments of a command."""
    rates: int


class RedisRates(RateStore):
    """The rate limits of a ``RedisBackend``, on its connections."""

    def __init__(self, backend: RedisBackend) -> None:
        self.backend = backend
        self.bodies = {verb: body_of(verb) for verb in VERBS}
        self._scripts: dict[tuple[str, int], Script] = {}
        self.encode = lru_cache(maxsize=256)(self._encode)
        self.encode_reserve = lru_cache(maxsize=1024)(self._encode_reserve)

    def _encode(self, terms: Terms) -> EncodedTerms:
        root = self.backend.layout.prefix.removesuffix(":") + "#rate"
        rings = [str(rate.window) for rate in terms.rates]
        keys = [f"{root}:meta:{terms.name}", f"{root}:free:{terms.name}", f"{root}s", f"{root}:gone:{terms.name}"]
        keys.append(f"{root}:line:{terms.name}")
        keys += [f"{root}:{ring}:{terms.name}" for ring in rings]
        own = terms.script_arguments()
        arguments = [terms.name, *own[:6], terms.text(), *own[6:]]
        return EncodedTerms(
            b"".join(map(bulk, keys)), b"".join(map(bulk, arguments)), len(keys) + 5 + len(arguments), len(rings)
        )

    def request(
        self,
        verb: str,
        terms: Terms,
        cost: int = 0,
        slot: object = 0,
        edition: int = 0,
        amount: int = 0,
        mode: str = "",
    ) -> tuple[Script, bytes]:
        """Return the script of ``verb``, with its keys and arguments."""
        encoded = self.encode(terms)
        words: tuple[str | int, ...] = cost, str(slot), edition, amount, mode
        return self._script(verb, encoded), b"%b%b%b" % (encoded.keys, b"".join(map(bulk, words)), encoded.terms)

    def _script(self, verb: str, encoded: EncodedTerms) -> Script:
        script = self._scripts.get((verb, encoded.rates))
        if script is None:
            script = Script(self.bodies[verb], encoded.size, 5 + encoded.rates)
            self._scripts[verb, encoded.rates] = script
        return script

    def _encode_reserve(self, terms: Terms, cost: int, mode: str) -> tuple[Script, bytes, bytes]:
        encoded = self.encode(terms)
        head = encoded.keys + bulk(cost) + bulk(0) + bulk(0)
        return self._script("reserve", encoded), head, bulk(mode) + encoded.terms

    def reserve_request(self, terms: Terms, cost: int, max_wait: int, mode: str) -> tuple[Script, bytes]:
        """Do what ``request`` does for ``reserve``, which every call uses: all but ``max_wait`` is encoded once."""
        script, head, end = self.encode_reserve(terms, cost, mode)
        amount = b"%d" % max_wait
        return script, b"%b$%d\r\n%b\r\n%b" % (head, len(amount), amount, end)

    def reserve(
        self, terms: Terms, cost: int, max_wait: int, spaced: bool = False, will_resume: bool = False
    ) -> Booked | Refused:
        # Sent again after a lost reply it may book twice: then one slot is lost, but the limit is not exceeded.
        mode = (SPACED if spaced else SOON) + (WILL_RESUME if will_resume else "")
        script, tail = self.reserve_request(terms, cost, max_wait, mode)
        return parse_booking(self.backend.wire.call(script, tail)[0])

    def reserve_many(self, terms: Terms, cost: int, max_wait: int, number: int) -> list[Booked | Refused]:
        answers: list[Booked | Refused] = []
        while len(answers) < number and not (answers and isinstance(answers[-1], Refused)):
            some = min(BATCH_SIZE, number - len(answers))
            request = self.request("reserve_many", terms, cost, slot=some, amount=max_wait, mode=SPACED + WILL_RESUME)
            answers += map(parse_booking, self.backend.wire.call(*request)[0])
        return answers

    def resume(
        self, terms: Terms, cost: int, slot: int, edition: int, max_wait: int, spaced: bool = False, leeway: int = 0
    ) -> Booked | Refused:
        mode = f"{SPACED if spaced else ''}{leeway or ''}"
        request = self.request("resume", terms, cost, slot, edition, max_wait, mode)
        try:
            return parse_booking(self.backend.wire.call(*request, again=False)[0])
        except BackendUnavailable as error:
            if not error.doubt:
                raise
            return self.reserve(terms, cost, max_wait, spaced)  # the old slot may belong to another caller now

    def _exchange_request(
        self, terms: Terms, cost: int, slots: Sequence[int], edition: int, max_wait: int, leeway: int
    ) -> tuple[Script, bytes]:
        return self.request("exchange", terms, cost, " ".join(map(str, slots)), edition, max_wait, str(leeway or ""))

    def exchange(
        self, terms: Terms, cost: int, slots: Sequence[int], edition: int, max_wait: int, leeway: int = 0
    ) -> list[Booked | Refused]:
        request = self._exchange_request(terms, cost, slots, edition, max_wait, leeway)
        try:
            return list(map(parse_booking, self.backend.wire.call(*request, again=False)[0]))
        except BackendUnavailable as error:
            if not error.doubt:
                raise
            return [self.reserve(terms, cost, max_wait)]

    def cancel(self, terms: Terms, cost: int, slot: int, edition: int) -> bool:
        request = self.request("cancel", terms, cost, slot, edition)
        return bool(self.backend.wire.call(*request, again=False)[0])

    def settle(self, terms: Terms, cost: int, slot: int, edition: int, actual: int) -> bool:
        return bool(self.backend.wire.call(*self.request("settle", terms, cost, slot, edition, actual), again=False)[0])

    def penalize(self, terms: Terms, pushback: Pushback, max_length: int) -> Penalty:
        return Penalty(*self.backend.wire.call(*self._penalize_request(terms, pushback, max_length))[0])

    def _penalize_request(self, terms: Terms, pushback: Pushback, max_length: int) -> tuple[Script, bytes]:
        mode = "at" if pushback.absolute else ""
        return self.request("penalize", terms, max_length, amount=pushback.amount, mode=mode)

    def pause(self, terms: Terms, length: int) -> None:
        self.backend.wire.call(*self.request("pause", terms, amount=length))

    def adjust(self, terms: Terms, share: int) -> None:
        self.backend.wire.call(*self.request("adjust", terms, amount=share))

    def usage(self, terms: Terms) -> Usage:
        return parse_usage(self.backend.wire.call(*self.request("usage", terms))[0])

    def reset(self, terms: Terms) -> None:
        self.backend.wire.call(*self.request("reset", terms))

    def names(self, limit: int = 1000) -> list[str]:
        return [name.decode() for name in self.backend.wire.call(NAMES, self.names_arguments(limit))[0]]

    def names_arguments(self, limit: int) -> bytes:
        """Return the key and argument of ``rate_names.lua``."""
        return bulk(self.backend.layout.prefix.removesuffix(":") + "#rates") + bulk(limit - 1)

    def terms(self, names: Sequence[str]) -> Mapping[str, Terms]:
        if not names:
            return {}
        return parse_terms(names, self.backend.wire.call(*self.terms_request(names))[0])

    def terms_request(self, names: Sequence[str]) -> tuple[Script, bytes]:
        """Return the script that reads terms, with its keys."""
        root = self.backend.layout.prefix.removesuffix(":") + "#rate:meta:"
        return TERMS.sized(len(names), len(names)), b"".join(bulk(root + name) for name in names)

    async def areserve(self, terms: Terms, cost: int, max_wait: int, will_resume: bool = False) -> Booked | Refused:
        script, tail = self.reserve_request(terms, cost, max_wait, SOON + (WILL_RESUME if will_resume else ""))
        return parse_booking((await self.backend.aio.call(script, tail))[0])

    async def aresume(
        self, terms: Terms, cost: int, slot: int, edition: int, max_wait: int, leeway: int = 0
    ) -> Booked | Refused:
        request = self.request("resume", terms, cost, slot, edition, max_wait, str(leeway or ""))
        try:
            return parse_booking((await self.backend.aio.call(*request, again=False))[0])
        except BackendUnavailable as error:
            if not error.doubt:
                raise
            return await self.areserve(terms, cost, max_wait)

    async def aexchange(
        self, terms: Terms, cost: int, slots: Sequence[int], edition: int, max_wait: int, leeway: int = 0
    ) -> list[Booked | Refused]:
        request = self._exchange_request(terms, cost, slots, edition, max_wait, leeway)
        try:
            return list(map(parse_booking, (await self.backend.aio.call(*request, again=False))[0]))
        except BackendUnavailable as error:
            if not error.doubt:
                raise
            return [await self.areserve(terms, cost, max_wait)]

    async def acancel(self, terms: Terms, cost: int, slot: int, edition: int) -> bool:
        request = self.request("cancel", terms, cost, slot, edition)
        return bool((await self.backend.aio.call(*request, again=False))[0])

    async def asettle(self, terms: Terms, cost: int, slot: int, edition: int, actual: int) -> bool:
        request = self.request("settle", terms, cost, slot, edition, actual)
        return bool((await self.backend.aio.call(*request, again=False))[0])

    async def apenalize(self, terms: Terms, pushback: Pushback, max_length: int) -> Penalty:
        return Penalty(*(await self.backend.aio.call(*self._penalize_request(terms, pushback, max_length)))[0])

    async def ausage(self, terms: Terms) -> Usage:
        return parse_usage((await self.backend.aio.call(*self.request("usage", terms)))[0])

    async def areset(self, terms: Terms) -> None:
        await self.backend.aio.call(*self.request("reset", terms))


def parse_booking(reply: bytes) -> Booked | Refused:
    """Parse a reply of a booking script."""
    numbers = [*map(int, reply.split())]
    if not numbers[0]:
        return Refused(*numbers[1:])
    _, slot, wait, edition, pause, time, rebuilt, leeway, in_line = numbers
    return Booked(slot, wait, edition, pause, time, rebuilt == 1, leeway, in_line == 1)


def parse_terms(names: Sequence[str], texts: Sequence[bytes]) -> dict[str, Terms]:
    """Parse a reply of ``rate_terms.lua``, without limiters of which nothing is stored."""
    found = {name: Terms.from_text(name, text.decode()) for name, text in zip(names, texts, strict=True) if text}
    return {name: terms for name, terms in found.items() if terms is not None}


def parse_usage(reply: Any) -> Usage:
    """Parse a reply of ``rate_usage.lua``."""
    time, free, following, tail, paused, share, refused, *numbers = reply
    rates = tuple(WindowUnits(*numbers[start : start + 3]) for start in range(0, len(numbers), 3))
    return Usage(time, rates, free, following, tail, paused, share, refused)
