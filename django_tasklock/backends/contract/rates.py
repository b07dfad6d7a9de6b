"""The contract of a store of rate limits. Times are whole microseconds.

A limiter has a clock of its own: the store's clock minus the time it was stopped by ``penalize``.
Slots are times on that clock. Every operation is one round trip where the store can do it in
one, and uses the store's clock, never the caller's. It raises ``BackendUnavailable`` when the
store could not be asked; and nothing else. Each caller is held to its own terms. An operation
that gives a slot back is never sent twice: the second one could release the slot of another
caller.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar, NamedTuple, ParamSpec, TypeVar, cast

from django_tasklock.backends.contract import threads
from django_tasklock.exceptions import BackendUnavailable

P = ParamSpec("P")
T = TypeVar("T")
BATCH_SIZE = 100  # slots that one step books
TENANT = ":tenant:"
"""The separator between a limiter's name and a tenant's."""

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

    def __str__(self) -> str:
        for unit in ("d", "h", "m", "s"):
            if self.window == _UNITS[unit]:
                return f"{self.limit}/{unit}"
        return f"{self.limit}/{self.window / 1_000_000:g}s"


class Terms(NamedTuple):
    """The parameters of a limiter. ``min_share``: the least share of the limit, in millionths; 0: not adaptive."""

    name: str
    rates: tuple[Rate, ...]
    min_share: int = 0
    horizon: int = 3_600_000_000
    """How far ahead a slot may be booked, in microseconds."""

    @property
    def longest_window(self) -> int:
        """The longest window including its margin: older bookings do not count any more."""
        return max(rate.window + rate.margin for rate in self.rates)

    @property
    def margin(self) -> int:
        """How late a slot may be used: the smallest margin of the rates."""
        return min(rate.margin for rate in self.rates)

    @property
    def adaptation_interval(self) -> int:
        """The least time between two adaptations of the limit: the shortest window, at least one second."""
        return max(1_000_000, min(rate.window for rate in self.rates))

    def numbers(self) -> tuple[int, ...]:
        """Return what scripts are told of them: numbers, and three for each rate."""
        return self.min_share, self.horizon, *itertools.chain(*self.rates)

    def text(self) -> str:
        """Return the text that a store keeps, and ``from_text`` parses: the numbers."""
        return " ".join(map(str, self.numbers()))

    @classmethod
    def from_text(cls, name: str, text: str) -> Terms | None:
        """Parse what ``text()`` returned; ``None`` if it cannot be parsed."""
        try:
            min_share, horizon, *numbers = map(int, text.split())
            rates = tuple(map(Rate._make, zip(*[iter(numbers)] * 3, strict=True)))
        except ValueError:
            return None
        return cls(name, rates, min_share, horizon) if rates else None


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
    """The edition of the slot, which proves whose it is: whoever gets it after this caller has another one, and so has
    every slot after a reset or a flush.
    """
    total_pause: int
    """How long the limiter's clock has been stopped in all: if it grows, callers that sleep must sleep longer."""
    time: int
    """The time of the slot by the store's clock, since 1970."""
    must_resume: bool = False
    """True if the slot is in the line: its owner must resume it before using it, and may get another one of it."""


class Refused(NamedTuple):
    """A refusal: nothing was booked. ``wait``: how long the caller would have had to wait."""

    wait: int


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


NEVER_AGAIN = frozenset({"resume", "cancel", "settle"})
"""Verbs that give units back, and are never sent twice."""


class RateStore(ABC):
    """The rate limits of one store. What each verb does is the function of that name in ``ledger.verbs``."""

    where: ClassVar[threads.Where] = "threads"
    """Where the verbs run for coroutines."""

    @abstractmethod
    def run(self, terms: Terms, verb: str, *arguments: int) -> Any:
        """Run a verb of the ledger on the book of one limiter, in one step, and return its answer.

        A verb of ``NEVER_AGAIN`` is not repeated: where an attempt may have been executed, this raises
        ``BackendUnavailable`` with ``doubt``.
        """

    def reserve(self, terms: Terms, cost: int, max_wait: int, spaced: bool = False) -> Booked | Refused:
        """Book the first slot for ``cost`` units, at most ``max_wait`` from now. Never waits.

        ``spaced``: slots that must be waited for are spread evenly over the window, not all at its beginning. Repeated
        after a lost reply, it may book twice: then one slot is lost, but the limit is not exceeded.
        """
        return cast(Booked | Refused, self.run(terms, "reserve", cost, max_wait, spaced))

    def reserve_many(self, terms: Terms, cost: int, max_wait: int, number: int) -> list[Booked | Refused]:
        """Do what ``reserve`` does ``number`` times, spaced, up to the first refusal."""
        answers: list[Booked | Refused] = []
        while len(answers) < number and not (answers and isinstance(answers[-1], Refused)):
            some = min(BATCH_SIZE, number - len(answers))
            answers += self.run(terms, "reserve_many", cost, max_wait, some)
        return answers

    def resume(
        self, terms: Terms, cost: int, slot: int, edition: int, max_wait: int, spaced: bool = False
    ) -> Booked | Refused:
        """Return the current state of a slot, at the latest a second before its time; or another one.

        A slot of the line is exchanged for an earlier one that was given back; from a second before its time, its owner
        takes the first of the line that can still be used. A slot that was missed, that another caller has taken, or of
        an earlier edition is exchanged for the next of the line, or a new one.
        """
        try:
            return cast(Booked | Refused, self.run(terms, "resume", cost, slot, edition, max_wait, spaced))
        except BackendUnavailable as error:
            if not error.doubt:
                raise
            return self.reserve(terms, cost, max_wait, spaced)  # the old slot may belong to another caller now

    def cancel(self, terms: Terms, cost: int, slot: int, edition: int) -> bool:
        """Give back a slot that was not used. False: there was nothing to give back any more."""
        return bool(self.run(terms, "cancel", cost, slot, edition))

    def settle(self, terms: Terms, cost: int, slot: int, edition: int, actual: int) -> bool:
        """Correct a booking from ``cost`` to the ``actual`` cost. False: nothing was changed, it is too late to matter
        or there is no difference.
        """
        return bool(self.run(terms, "settle", cost, slot, edition, actual))

    def penalize(self, terms: Terms, pushback: Pushback, max_length: int) -> Penalty:
        """Stop the limiter's clock for at most ``max_length``; an existing stop is never shortened."""
        return cast(Penalty, self.run(terms, "penalize", *pushback, max_length))

    def pause(self, terms: Terms, length: int) -> None:
        """Stop the limiter's clock for exactly ``length`` from now, in place of any other stop; 0: start it again."""
        self.run(terms, "pause", length)

    def adjust(self, terms: Terms, share: int) -> None:
        """Set the current share of the limit, in millionths."""
        self.run(terms, "adjust", share)

    def usage(self, terms: Terms) -> Usage:
        """Return the usage of the limiter. Changes nothing."""
        return cast(Usage, self.run(terms, "usage"))

    def usages(self, each: Sequence[Terms]) -> list[Usage]:
        """Return the usage of several limiters. A store that can reads them in one step."""
        return [self.usage(terms) for terms in each]

    def reset(self, terms: Terms) -> None:
        """Drop all usage, bookings, stops and the share; callers that sleep until a slot must book again."""
        self.run(terms, "reset")

    @abstractmethod
    def names(self, limit: int = 1000, of: str = "") -> list[str]:
        """Return the recently used limiters, the latest first, from an index; or the tenants of one, with its name.

        A limiter of which only a tenant was used is one of them.
        """

    @abstractmethod
    def count_tenants(self, names: Sequence[str]) -> Mapping[str, int]:
        """Return the number of recently used tenants of each limiter, without limiters that have none."""

    @abstractmethod
    def terms(self, names: Sequence[str]) -> Mapping[str, Terms]:
        """Return the terms of the last caller of each limiter, without limiters of which nothing is stored."""

    async def in_thread(self, verb: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Run ``verb`` where it may block, and return its answer."""
        return await threads.run(self, self.where, partial(verb, *args, **options))
