"""What a store must promise of rate limits. Times are whole microseconds.

A limiter has a clock of its own: the store's, less the time it was stopped by ``penalize``.
Slots are times on it. Every verb is one round trip where the store can do it in
one, reads the store's clock and never the caller's, and raises ``BackendUnavailable`` when
the store could not be asked; what books raises ``TermsDiffer`` where the store has other
terms in force; and nothing else. What gives a slot back is never sent twice:
it could hand out somebody else's slot.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

from asgiref.sync import sync_to_async

from django_tasklock.exceptions import TaskLockError

Algorithm = Literal["window", "paced", "bucket"]
"""How calls are let through: see ``RateLimiter``."""
ALGORITHMS = get_args(Algorithm)
"""The words of ``Algorithm``."""
REMOVED_ALGORITHM = "counter"
"""An approximate algorithm of earlier versions. Where a store still has it, ``"window"`` takes its place."""

TENANT = ":tenant:"
"""The text between a limiter's name and a tenant's."""

_SINGLE = 1000  # bookings a store remembers one by one; with a greater limit they share a hundred cells
_UNITS = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}


def split_tenant(name: str) -> tuple[str, str | None]:
    """Return a limiter's name and the tenant's; ``None``: it is no tenant's."""
    limiter, between, tenant = name.partition(TENANT)
    return limiter, tenant if between else None


class Rate(NamedTuple):
    """At most ``limit`` units in any ``window``; a call may use its slot up to ``margin`` late."""

    limit: int
    window: int
    margin: int

    @property
    def cell(self) -> int:
        """Microseconds within which bookings count as one moment, its end: of a great limit not each is kept."""
        return 1 if self.limit <= _SINGLE else -(-self.window // 100)

    def __str__(self) -> str:
        for unit in ("d", "h", "m", "s"):
            if self.window == _UNITS[unit]:
                return f"{self.limit}/{unit}"
        return f"{self.limit}/{self.window / 1_000_000:g}s"


class Terms(NamedTuple):
    """What a store must know of a limiter. ``floor``: the least share of the limit, in millionths; 0: not adaptive."""

    name: str
    rates: tuple[Rate, ...]
    algorithm: Algorithm = "window"
    burst: int = 0
    """Units a bucket holds; 0: a tenth of the limit."""
    cold_wait: bool = False
    """True if a store that knows nothing of the limiter lets one window pass first."""
    floor: int = 0
    horizon: int = 3_600_000_000
    """Microseconds: how far ahead a slot may be booked."""
    rule_in_store: str = ""
    """The rule that older processes brought into force, where this version has no such algorithm any more."""

    def burst_of(self, rate: Rate) -> int:
        """Return the units that may go at once."""
        if self.algorithm == "bucket":
            return self.burst or max(1, rate.limit // 10)
        return 1

    def capacity(self, rate: Rate) -> int:
        """Return the most units that one call can cost under ``rate``: what a bucket, or a window, has room for."""
        return self.burst_of(rate) if self.algorithm == "bucket" else rate.limit

    @property
    def longest(self) -> int:
        """The longest window, its margin included: after so long nothing of the past counts."""
        return max(rate.window + rate.margin for rate in self.rates)

    @property
    def margin(self) -> int:
        """How late a slot may be used, by the strictest of the rates."""
        first, *others = self.rates
        return min(first.margin, *[rate.margin for rate in others]) if others else first.margin

    @property
    def pace(self) -> int:
        """How often the limit may be adapted: once in the shortest window."""
        return max(1_000_000, min(rate.window for rate in self.rates))

    def words(self) -> list[str | int]:
        """Return all of it but the name, as a script is told it."""
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
        """Return what a store keeps of it, for those who look at the limiter and do not know it: see ``read``."""
        return _text(self)

    def rule(self) -> str:
        """Return the part of ``text`` that all callers must have in common: not how far ahead one books."""
        return self.rule_in_store or _rule(self)

    def under(self, rule: str) -> Terms:
        """Return these terms with what all have in common replaced by ``rule``; as they are if it cannot be read.

        Under a rule of the removed algorithm the rates of that rule hold, as windows, until it is outvoted.
        """
        found = Terms.read(self.name, rule)
        if found is None:
            return self
        older = rule if rule.startswith(f"{REMOVED_ALGORITHM} ") else ""
        return found._replace(cold_wait=self.cold_wait, horizon=self.horizon, rule_in_store=older)

    @classmethod
    def read(cls, name: str, text: str) -> Terms | None:
        """Return what ``text`` was made of; ``None`` if it is none. A bucket of one unit is read as paced, which it is.

        What an older version wrote of the removed algorithm is read as windows.
        """
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
        elif algorithm == REMOVED_ALGORITHM:
            algorithm = "window"
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


class TermsDiffer(Exception):
    """Other terms are in force, and nothing was booked. ``rule``: those, as ``Terms.rule()`` has them."""

    def __init__(self, rule: str) -> None:
        super().__init__(rule)
        self.rule = rule


class Booked(NamedTuple):
    """A slot. ``wait``: microseconds from the answer's making; negative: it was that long ago."""

    slot: int
    wait: int
    edition: int
    """Of the limiter's book: a reset, a flush and other terms begin another, in which older slots are unknown."""
    pause: int
    """How long the limiter's clock has been stopped so far: more of it means that sleepers sleep longer."""
    time: int
    """When it is its turn, by the store's clock, since 1970."""
    rebuilt: bool = False
    """True if bookings were further ahead than any horizon, so that all were dropped: an older version does not see
    that the store's clock was set back.
    """
    leeway: int = 0
    """Microseconds by which it may be used later than the margin allows: it was booked for its end."""
    asks: bool = False
    """True if it stands in line: whoever has it asks again before going, and may get the one before it or behind it."""


class Refused(NamedTuple):
    """A refusal: nothing was booked. ``wait``: how long it would have taken."""

    wait: int
    edition: int
    pause: int


class Penalty(NamedTuple):
    """The effect of a pushback: how long the limiter stands still from now; the share of the limit, in millionths."""

    wait: int
    share: int


class Used(NamedTuple):
    """One rate of a limiter: its limit now, units used in the window that ends now, units booked ahead."""

    limit: int
    used: int
    ahead: int


class Use(NamedTuple):
    """How far a limiter is used. ``time``: the store's, since 1970; waits are from then on."""

    time: int
    rates: tuple[Used, ...]
    free: int
    """Slots given back that nobody has taken yet."""
    next: int
    """How long a call of cost one would wait."""
    tail: int
    """How long until the last slot that is booked."""
    paused: int
    share: int
    refused: int
    """Calls refused since the limiter was made or reset."""


class RateStore(ABC):
    """The rate limits of one store."""

    @abstractmethod
    def reserve(
        self, terms: Terms, cost: int, longest: int, spaced: bool = False, asks: bool = False
    ) -> Booked | Refused:
        """Book the first slot for ``cost`` units, at most ``longest`` from now. Never waits.

        ``spaced``: who has to wait is spread evenly over the window, in place of all at its beginning.
        ``asks``: whoever has it will ask again before going, if that is later than in a second.
        """

    @abstractmethod
    def resume(
        self, terms: Terms, cost: int, slot: int, edition: int, longest: int, spaced: bool = False, leeway: int = 0
    ) -> Booked | Refused:
        """Ask what has become of a slot: it stands, or another one comes in exchange for it, if it was missed or is of
        an earlier edition.

        ``leeway``: that one may be used so much later, and those behind it wait as much longer.
        """

    @abstractmethod
    def exchange(
        self, terms: Terms, cost: int, slots: Sequence[int], edition: int, longest: int, leeway: int = 0
    ) -> list[Booked | Refused]:
        """Do what ``resume`` does for some slots that were missed, at once. Fewer answers: the others are to be
        resumed.
        """

    @abstractmethod
    def cancel(self, terms: Terms, cost: int, slot: int, edition: int) -> bool:
        """Give back a slot that was not used. False: there was nothing left to give back."""

    @abstractmethod
    def settle(self, terms: Terms, cost: int, slot: int, edition: int, actual: int) -> bool:
        """Book what the call cost, ``actual`` and not ``cost``. False: too late to matter."""

    @abstractmethod
    def penalize(self, terms: Terms, pushback: Pushback, longest: int) -> Penalty:
        """Stop the limiter's clock, for ``longest`` at most; never shortens a stop."""

    def pause(self, terms: Terms, length: int) -> None:
        """Stop the limiter's clock for exactly so long from now, in place of any other stop; 0: let it go on."""
        raise TaskLockError(f"{type(self).__name__} cannot pause a limiter")

    @abstractmethod
    def adjust(self, terms: Terms, share: int) -> None:
        """Set the share of the limit that is in force, in millionths."""

    @abstractmethod
    def use(self, terms: Terms) -> Use:
        """Return how the limiter stands. Changes nothing."""

    @abstractmethod
    def reset(self, terms: Terms) -> None:
        """Forget what was used and booked, stops and share too; who sleeps books again."""

    @abstractmethod
    def names(self, limit: int = 1000) -> list[str]:
        """Return the limiters that were used lately, the latest first, from an index."""

    @abstractmethod
    def terms(self, names: Sequence[str]) -> Mapping[str, Terms]:
        """Return the terms that whoever used these limiters last had, without those of which nothing is stored."""

    @abstractmethod
    def agree(self, terms: Terms, process: str) -> str:
        """Say that this process has these terms; return those in force, as ``Terms.rule()``.

        In force stays what is, until more processes have said within the last minute that they have these terms than
        have said so of those in force. Then what is booked for later than in a second is dropped, as by ``reset``.
        """

    def in_force(self, terms: Terms) -> Terms:
        """Return the terms by which whoever has these is served."""
        return terms

    async def aagree(self, terms: Terms, process: str) -> str:
        """Do what ``agree`` does, for coroutines."""
        return await sync_to_async(self.agree)(terms, process)

    def reserve_many(self, terms: Terms, cost: int, longest: int, number: int) -> list[Booked | Refused]:
        """Do what ``reserve`` does so often, spaced, up to the first that is refused."""
        answers: list[Booked | Refused] = []
        while len(answers) < number and not (answers and isinstance(answers[-1], Refused)):
            answers.append(self.reserve(terms, cost, longest, spaced=True, asks=True))
        return answers

    async def areserve(self, terms: Terms, cost: int, longest: int, asks: bool = False) -> Booked | Refused:
        """Do what ``reserve`` does, for coroutines. A cancelled one gives back what it is granted."""
        return await sync_to_async(self.reserve)(terms, cost, longest, asks=asks)

    async def aresume(
        self, terms: Terms, cost: int, slot: int, edition: int, longest: int, leeway: int = 0
    ) -> Booked | Refused:
        """Do what ``resume`` does, for coroutines."""
        return await sync_to_async(self.resume)(terms, cost, slot, edition, longest, leeway=leeway)

    async def aexchange(
        self, terms: Terms, cost: int, slots: Sequence[int], edition: int, longest: int, leeway: int = 0
    ) -> list[Booked | Refused]:
        """Do what ``exchange`` does, for coroutines."""
        return await sync_to_async(self.exchange)(terms, cost, slots, edition, longest, leeway)

    async def acancel(self, terms: Terms, cost: int, slot: int, edition: int) -> bool:
        """Do what ``cancel`` does, for coroutines."""
        return await sync_to_async(self.cancel)(terms, cost, slot, edition)

    async def asettle(self, terms: Terms, cost: int, slot: int, edition: int, actual: int) -> bool:
        """Do what ``settle`` does, for coroutines."""
        return await sync_to_async(self.settle)(terms, cost, slot, edition, actual)

    async def apenalize(self, terms: Terms, pushback: Pushback, longest: int) -> Penalty:
        """Do what ``penalize`` does, for coroutines."""
        return await sync_to_async(self.penalize)(terms, pushback, longest)

    async def ause(self, terms: Terms) -> Use:
        """Do what ``use`` does, for coroutines."""
        return await sync_to_async(self.use)(terms)

    async def areset(self, terms: Terms) -> None:
        """Do what ``reset`` does, for coroutines."""
        await sync_to_async(self.reset)(terms)
