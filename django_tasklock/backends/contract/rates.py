"""The contract of a store of rate limits. Times are whole microseconds.

A limiter has a clock of its own: the store's clock minus the time it was stopped by ``penalize``.
Slots are times on that clock. Every operation is one round trip where the store can do it in
one, and uses the store's clock, never the caller's. It raises ``BackendUnavailable`` when the
store could not be asked; and nothing else. Each caller is held to its own terms. An operation
that gives a slot back is never sent twice: the second one could release the slot of another
caller.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import ClassVar, Literal, NamedTuple, ParamSpec, TypeVar, get_args

from django_tasklock.backends.contract import threads
from django_tasklock.exceptions import TaskLockError

P = ParamSpec("P")
T = TypeVar("T")
Algorithm = Literal["window", "paced", "bucket"]
"""How calls are let through: see ``RateLimiter``."""
ALGORITHMS = get_args(Algorithm)
"""The values of ``Algorithm``."""

TENANT = ":tenant:"
"""The separator between a limiter's name and a tenant's."""

_MAX_SINGLE = 1000  # up to this limit a store keeps each booking; above it bookings share a hundred cells
_UNITS = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}


def split_tenant(name: str) -> tuple[str, str | None]:
    """Return a limiter's name and its tenant; ``None``: the limiter has no tenants."""
    limiter, between, tenant = name.partition(TENANT)
    return limiter, tenant if between else None


class Rate(NamedTuple):
    """At most ``limit`` units in any ``window``; a call may use its slot up to ``margin`` late."""

    limit: int
    window: int
    margin: int

    @property
    def cell(self) -> int:
        """The length of a cell, in microseconds: with a limit above 1000, bookings of one cell count at its end."""
        return 1 if self.limit <= _MAX_SINGLE else -(-self.window // 100)

    def __str__(self) -> str:
        for unit in ("d", "h", "m", "s"):
            if self.window == _UNITS[unit]:
                return f"{self.limit}/{unit}"
        return f"{self.limit}/{self.window / 1_000_000:g}s"


class Terms(NamedTuple):
    """The parameters of a limiter. ``min_share``: the least share of the limit, in millionths; 0: not adaptive."""

    name: str
    rates: tuple[Rate, ...]
    algorithm: Algorithm = "window"
    burst: int = 0
    """The capacity of a bucket, in units; 0: a tenth of the limit."""
    cold_wait: bool = False
    """True: where the store has no data of the limiter, the first slot is one window away."""
    min_share: int = 0
    horizon: int = 3_600_000_000
    """How far ahead a slot may be booked, in microseconds."""

    def burst_of(self, rate: Rate) -> int:
        """Return the units that may be used at once."""
        if self.algorithm == "bucket":
            return self.burst or max(1, rate.limit // 10)
        return 1

    def capacity(self, rate: Rate) -> int:
        """Return the highest cost of one call under ``rate``: the capacity of a bucket, or of a window."""
        return self.burst_of(rate) if self.algorithm == "bucket" else rate.limit

    @property
    def longest_window(self) -> int:
        """The longest window including its margin: older bookings do not count any more."""
        return max(rate.window + rate.margin for rate in self.rates)

    @property
    def margin(self) -> int:
        """How late a slot may be used: the smallest margin of the rates."""
        first, *others = self.rates
        return min(first.margin, *[rate.margin for rate in others]) if others else first.margin

    @property
    def adaptation_interval(self) -> int:
        """The least time between two adaptations of the limit: the shortest window, at least one second."""
        return max(1_000_000, min(rate.window for rate in self.rates))

    def script_arguments(self) -> list[str | int]:
        """Return all parameters but the name, in the order of the scripts' arguments."""
        found: list[str | int] = [
            "tat" if self.algorithm in ("paced", "bucket") else self.algorithm,
            "wait" if self.cold_wait else "",
            self.min_share,
            self.horizon,
            self.longest_window,
            self.adaptation_interval,
        ]
        for rate in self.rates:
            found += [rate.limit, rate.window, rate.margin, rate.cell, self.burst_of(rate)]
        return found

    def text(self) -> str:
        """Return the text that a store keeps, and ``from_text`` parses."""
        return _text(self)

    @classmethod
    def from_text(cls, name: str, text: str) -> Terms | None:
        """Parse what ``text()`` returned; ``None`` if it cannot be parsed. A bucket of one unit is the same as paced,
        and is read as that.
        """
        try:
            algorithm, cold, *rest = text.split(" ")
            min_share, horizon, *numbers = map(int, rest)
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
        return cls(name, rates, algorithm, burst, cold == "wait", min_share, horizon)  # type: ignore[arg-type]


@lru_cache(maxsize=256)
def _text(terms: Terms) -> str:
    algorithm, cold, min_share, horizon, *_rest = terms.script_arguments()
    found = [algorithm, cold, min_share, horizon]
    for rate in terms.rates:
        found += rate
        if algorithm == "tat":
            found.append(terms.burst_of(rate))
    return " ".join(map(str, found))


class Pushback(NamedTuple):
    """How long to stop: microseconds from now, or until a time (microseconds since 1970) if ``absolute``."""

    amount: int
    absolute: bool = False

    def __str__(self) -> str:
        """Return it for a log: ``30 s``, or ``a pause until 2026-01-01 12:00:00+00:00``."""
        seconds = self.amount / 1_000_000
        return f"a pause until {datetime.fromtimestamp(seconds, UTC)}" if self.absolute else f"{seconds:g} s"


class Booked(NamedTuple):
    """A booked slot. ``wait``: microseconds from the time of the reply until the slot; negative: it has passed."""

    slot: int
    wait: int
    edition: int
    """The edition of the limiter's book: a reset or a flush begins a new one, without the older slots."""
    total_pause: int
    """How long the limiter's clock has been stopped in all: if it grows, callers that sleep must sleep longer."""
    time: int
    """The time of the slot by the store's clock, since 1970."""
    rebuilt: bool = False
    """True if all bookings were dropped, because they were further ahead than any horizon: an older version of this
    package, which does not notice that the store's clock was set back, has booked them.
    """
    leeway: int = 0
    """Microseconds by which it may be used later than the margin allows: it was booked for the end of that time."""
    must_resume: bool = False
    """True if the slot is in the line: its owner must resume it before using it, and may get another of the line."""


class Refused(NamedTuple):
    """A refusal: nothing was booked. ``wait``: how long the caller would have had to wait."""

    wait: int
    edition: int
    total_pause: int


class Penalty(NamedTuple):
    """The effect of a pushback: how long the limiter is stopped from now on; its share of the limit, in millionths."""

    wait: int
    share: int


class WindowUnits(NamedTuple):
    """One rate of a limiter: its limit now, units used in the window that ends now, units booked ahead."""

    limit: int
    used: int
    ahead: int


class Usage(NamedTuple):
    """The usage of a limiter. ``time``: the store's, since 1970; waits count from it."""

    time: int
    rates: tuple[WindowUnits, ...]
    free: int
    """The number of cancelled slots that have not been booked again."""
    next: int
    """How long a call of cost one would wait."""
    tail: int
    """How long until the last booked slot."""
    paused: int
    share: int
    refused: int
    """The number of calls refused since the limiter was created or reset."""


class RateStore(ABC):
    """The rate limits of one store."""

    where: ClassVar[threads.Where] = "threads"
    """Where the verbs run for coroutines."""

    @abstractmethod
    def reserve(
        self, terms: Terms, cost: int, max_wait: int, spaced: bool = False, will_resume: bool = False
    ) -> Booked | Refused:
        """Book the first slot for ``cost`` units, at most ``max_wait`` from now. Never waits.

        ``spaced``: slots that must be waited for are spread evenly over the window, not all at its beginning.
        ``will_resume``: the caller will resume the slot before using it, if that is more than a second away.
        """

    @abstractmethod
    def resume(
        self, terms: Terms, cost: int, slot: int, edition: int, max_wait: int, spaced: bool = False, leeway: int = 0
    ) -> Booked | Refused:
        """Return the current state of a slot, or a slot in exchange if it was missed or belongs to an earlier edition.

        ``leeway``: the new slot may be used that much later, and all later slots are delayed by the same.
        """

    @abstractmethod
    def exchange(
        self, terms: Terms, cost: int, slots: Sequence[int], edition: int, max_wait: int, leeway: int = 0
    ) -> list[Booked | Refused]:
        """Do what ``resume`` does for several missed slots at once. If there are fewer results than slots, the caller
        must resume the others one by one.
        """

    @abstractmethod
    def cancel(self, terms: Terms, cost: int, slot: int, edition: int) -> bool:
        """Give back a slot that was not used. False: there was nothing to give back any more."""

    @abstractmethod
    def settle(self, terms: Terms, cost: int, slot: int, edition: int, actual: int) -> bool:
        """Correct a booking from ``cost`` to the ``actual`` cost. False: nothing was changed, it is too late to matter
        or there is no difference.
        """

    @abstractmethod
    def penalize(self, terms: Terms, pushback: Pushback, max_length: int) -> Penalty:
        """Stop the limiter's clock for at most ``max_length``; an existing stop is never shortened."""

    def pause(self, terms: Terms, length: int) -> None:
        """Stop the limiter's clock for exactly ``length`` from now, in place of any other stop; 0: start it again."""
        raise TaskLockError(f"{type(self).__name__} cannot pause a limiter")

    @abstractmethod
    def adjust(self, terms: Terms, share: int) -> None:
        """Set the current share of the limit, in millionths."""

    @abstractmethod
    def usage(self, terms: Terms) -> Usage:
        """Return the usage of the limiter. Changes nothing."""

    def usages(self, each: Sequence[Terms]) -> list[Usage]:
        """Return the usage of several limiters. A store that can reads them in one step."""
        return [self.usage(terms) for terms in each]

    @abstractmethod
    def reset(self, terms: Terms) -> None:
        """Drop all usage, bookings, stops and the share; callers that sleep until a slot must book again."""

    @abstractmethod
    def names(self, limit: int = 1000) -> list[str]:
        """Return the recently used limiters, the latest first, from an index."""

    @abstractmethod
    def terms(self, names: Sequence[str]) -> Mapping[str, Terms]:
        """Return the terms of the last caller of each limiter, without limiters of which nothing is stored."""

    async def in_thread(self, verb: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Run ``verb`` where it may block, and return its answer."""
        return await threads.run(self, self.where, partial(verb, *args, **options))

    def reserve_many(self, terms: Terms, cost: int, max_wait: int, number: int) -> list[Booked | Refused]:
        """Do what ``reserve`` does ``number`` times, spaced, up to the first refusal."""
        answers: list[Booked | Refused] = []
        while len(answers) < number and not (answers and isinstance(answers[-1], Refused)):
            answers.append(self.reserve(terms, cost, max_wait, spaced=True, will_resume=True))
        return answers

    async def areserve(self, terms: Terms, cost: int, max_wait: int, will_resume: bool = False) -> Booked | Refused:
        """Do what ``reserve`` does, for coroutines."""
        return await self.in_thread(self.reserve, terms, cost, max_wait, will_resume=will_resume)

    async def aresume(
        self, terms: Terms, cost: int, slot: int, edition: int, max_wait: int, leeway: int = 0
    ) -> Booked | Refused:
        """Do what ``resume`` does, for coroutines."""
        return await self.in_thread(self.resume, terms, cost, slot, edition, max_wait, leeway=leeway)

    async def aexchange(
        self, terms: Terms, cost: int, slots: Sequence[int], edition: int, max_wait: int, leeway: int = 0
    ) -> list[Booked | Refused]:
        """Do what ``exchange`` does, for coroutines."""
        return await self.in_thread(self.exchange, terms, cost, slots, edition, max_wait, leeway)

    async def acancel(self, terms: Terms, cost: int, slot: int, edition: int) -> bool:
        """Do what ``cancel`` does, for coroutines."""
        return await self.in_thread(self.cancel, terms, cost, slot, edition)

    async def asettle(self, terms: Terms, cost: int, slot: int, edition: int, actual: int) -> bool:
        """Do what ``settle`` does, for coroutines."""
        return await self.in_thread(self.settle, terms, cost, slot, edition, actual)

    async def apenalize(self, terms: Terms, pushback: Pushback, max_length: int) -> Penalty:
        """Do what ``penalize`` does, for coroutines."""
        return await self.in_thread(self.penalize, terms, pushback, max_length)

    async def ausage(self, terms: Terms) -> Usage:
        """Do what ``usage`` does, for coroutines."""
        return await self.in_thread(self.usage, terms)

    async def areset(self, terms: Terms) -> None:
        """Do what ``reset`` does, for coroutines."""
        await self.in_thread(self.reset, terms)
