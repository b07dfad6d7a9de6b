"""Callers of one limiter, simulated by random steps: for property tests of the book and of the scripts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from django_tasklock.backends.contract.rates import Booked, Rate, Terms
from django_tasklock.backends.ledger import verbs as ledger_verbs
from django_tasklock.backends.ledger.book import ASKS_WITHIN, TICK, RateBook
from django_tasklock.backends.ledger.state import State

__all__ = ["START", "Caller", "Simulation", "random_steps", "terms"]

START = 1_800_000_000_000_000
HOUR = 3_600_000_000

_rates = st.builds(
    Rate,
    limit=st.sampled_from([1, 2, 3, 5, 10]),
    window=st.sampled_from([1_000_000, 1_000_003, 7_000_000]),
    margin=st.sampled_from([16, 1000, 50_000, 300_000]),  # a call goes within that of its slot
)
_great = st.builds(Rate, limit=st.sampled_from([30, 5000]), window=st.just(60_000_000), margin=st.just(50_000))
_sets = st.one_of(
    st.tuples(_rates),
    st.lists(_rates, min_size=2, max_size=3, unique_by=lambda rate: rate.window).map(tuple),
    st.tuples(_great),
    st.tuples(_rates, _great),
)


def terms(horizon: int = HOUR) -> st.SearchStrategy[Terms]:
    """Limiters."""
    return st.builds(
        Terms,
        name=st.just("play"),
        rates=_sets,
        min_share=st.sampled_from([0, 100_000, 500_000]),
        horizon=st.just(horizon),
    )


_costs = st.sampled_from([1, 1, 1, 1, 2, 3, 700])
_steps = {
    "reserve": [
        st.tuples(st.just("reserve"), _costs, st.sampled_from([0, 0, 500_000, 3_000_000, HOUR])),
        st.tuples(st.just("reserve"), _costs, st.just(HOUR)),
        st.tuples(st.just("reserve"), st.just(1), st.just(HOUR)),
    ],
    "spaced": [st.tuples(st.just("spaced"), _costs)],
    "pass": [
        st.tuples(st.just("pass"), st.sampled_from([1, 999, 20_000, 250_000, 1_000_000, 8_000_000, 200_000_000])),
    ],
    "turn": [
        st.tuples(st.just("turn"), st.sampled_from([0, 0, 0, 500, 40_000, 400_000])),
        st.tuples(st.just("turn"), st.sampled_from([0, 900, 45_000, 250_000])),
    ],
    "many": [st.tuples(st.just("many"), _costs, st.integers(1, 5))],
    "cancel": [st.tuples(st.just("cancel"), st.integers(0, 30))],
    "again": [st.tuples(st.just("again"), st.integers(0, 9))],
    "unused": [st.tuples(st.just("unused"), st.integers(0, 5))],
    "wake": [st.tuples(st.just("wake"), st.integers(0, 30))],
    "adjust": [st.tuples(st.just("adjust"), st.sampled_from([100_000, 500_000, 1_000_000]))],
    "penalize": [st.tuples(st.just("penalize"), st.sampled_from([100_000, 2_000_000, 90_000_000]))],
    "pause": [st.tuples(st.just("pause"), st.sampled_from([0, 0, 100_000, 90_000_000]))],
    "settle": [st.tuples(st.just("settle"), st.integers(0, 5), st.integers(0, 4))],
    "change": [st.tuples(st.just("change"), st.integers(0, 3))],
    "reset": [st.tuples(st.just("reset"))],
    "usage": [st.tuples(st.just("usage"))],
    "back": [st.tuples(st.just("back"), st.sampled_from([1000, 5_000_000, 100 * HOUR]))],
}


def random_steps(without: Sequence[str] = ()) -> st.SearchStrategy[list[tuple]]:
    """What happens, in order."""
    steps = [step for name, some in _steps.items() if name not in without for step in some]
    return st.lists(st.one_of(steps), min_size=20, max_size=60)


@dataclass
class Caller:
    """A caller: what it has booked, and what it knows of that."""

    cost: int
    slot: int
    edition: int
    due: int
    """When it is its turn, by the store's clock, as the caller was told."""
    until: int = 0
    """Until then the caller goes without asking."""
    changes_seen: int = 0
    """How often the limiter had been changed when the caller last heard of it."""
    must_resume: bool = False
    """It asks before it goes, whatever it was told."""
    used: int = 0
    """When it was used; 0: not yet."""


@dataclass
class Simulation:
    """Callers and a book. ``do`` returns what the store answered; ``ask`` may be overridden to ask another store."""

    terms: Terms
    time: int = START
    state: State = field(default_factory=State)
    waiting: list[Caller] = field(default_factory=list)
    used: list[Caller] = field(default_factory=list)
    given_back: list[Caller] = field(default_factory=list)
    """Those that were given back."""
    limits: list[Terms] = field(default_factory=list)
    """The terms of the callers so far."""
    changes: int = 0
    """Stops, resets and clocks set back so far: after one of them callers ask."""

    def __post_init__(self) -> None:
        self.limits.append(self.terms)

    def ask(self, verb: str, *arguments: object) -> object:
        """The answer of the book."""
        state = State(self.state.to_json()) if verb == "usage" else self.state  # a look leaves nothing behind
        answer = getattr(ledger_verbs, verb)(RateBook(state, self.terms, self.time), *arguments)
        state.terms = self.terms.text()
        return answer

    def do(self, step: tuple) -> None:
        """One step."""
        getattr(self, f"_{step[0]}")(*step[1:])

    def end(self) -> None:
        """Everybody who waits gets his turn."""
        for _ in range(1000):
            if not self.waiting:
                return
            self.time = max(self.time, min(caller.due for caller in self.waiting))
            self._turn(0)
        raise AssertionError("somebody waits for ever")

    def _spaced(self, cost: int) -> None:
        self._reserve(cost, HOUR, 1)

    def _reserve(self, cost: int, max_wait: int, spaced: int = 0) -> None:
        cost = self._most(cost)
        self._book(cost, max_wait, [self.ask("reserve", cost, max_wait, spaced)])

    def _many(self, cost: int, number: int) -> None:
        cost = self._most(cost)
        self._book(cost, HOUR, self.ask("reserve_many", cost, HOUR, number))

    def _most(self, cost: int) -> int:
        return min([cost, *(rate.limit for rate in self.terms.rates)])  # more is refused before any store is asked

    def _book(self, cost: int, max_wait: int, answers: Sequence[object]) -> None:
        for answer in answers:
            if isinstance(answer, Booked):
                assert answer.wait <= max_wait or answer.wait < TICK
                caller = Caller(cost, answer.slot, answer.edition, 0)
                self._record_answer(caller, answer)
                self.waiting.append(caller)
        self._go(0)

    def _record_answer(self, caller: Caller, answer: Booked) -> None:
        caller.slot, caller.edition, caller.due = answer.slot, answer.edition, self.time + max(0, answer.wait)
        caller.until = self.time + answer.wait + self.terms.margin
        caller.changes_seen = self.changes
        caller.must_resume = answer.must_resume or answer.wait > ASKS_WITHIN

    def _pass(self, microseconds: int) -> None:
        self.time += microseconds

    def _back(self, microseconds: int) -> None:
        self.changes += 1
        self.given_back.clear()  # what had passed is to come again
        self.time -= microseconds

    def _turn(self, late: int) -> None:
        """Time goes on to the next caller's turn, who wakes somewhat late; all that are due go."""
        if self.waiting:
            self.time = max(self.time, min(caller.due for caller in self.waiting) + late)
            self._go(late)

    def _go(self, late: int) -> None:
        for caller in sorted(self.waiting, key=lambda caller: caller.due):
            if caller.due <= self.time:
                self._resume(caller)

    def _wake(self, number: int) -> None:
        if self.waiting:
            self._resume(self.waiting[number % len(self.waiting)])

    def _resume(self, caller: Caller) -> None:
        if caller.must_resume or caller.changes_seen != self.changes or not caller.due <= self.time <= caller.until:
            answer = self.ask("resume", caller.cost, caller.slot, caller.edition, HOUR, 0)
            if not isinstance(answer, Booked):
                self.waiting.remove(caller)
                return
            self._record_answer(caller, answer)
            if caller.due > self.time:
                return
        self.waiting.remove(caller)
        caller.used = self.time
        self.used.append(caller)

    def _cancel(self, number: int) -> None:
        if self.waiting:
            caller = self.waiting.pop(number % len(self.waiting))
            if self.ask("cancel", caller.cost, caller.slot, caller.edition):
                self.given_back.append(caller)

    def _again(self, number: int) -> None:
        """Somebody says once more that he has given it back."""
        if self.given_back:
            caller = self.given_back[-1 - number % len(self.given_back)]
            assert not self.ask("cancel", caller.cost, caller.slot, caller.edition)

    def _unused(self, number: int) -> None:
        """Granted, and then the call was not made."""
        if self.used:
            caller = self.used.pop(-1 - number % len(self.used))
            if self.ask("cancel", caller.cost, caller.slot, caller.edition):
                self.given_back.append(caller)

    def _settle(self, number: int, less: int) -> None:
        if self.used:
            caller = self.used[-1 - number % len(self.used)]
            actual = max(0, caller.cost - less)
            self.ask("settle", caller.cost, caller.slot, caller.edition, actual)
            caller.cost = actual

    def _penalize(self, microseconds: int) -> None:
        self.changes += 1
        self.ask("penalize", microseconds, 0, HOUR)

    def _pause(self, microseconds: int) -> None:
        self.changes += 1
        self.ask("pause", microseconds)

    def _adjust(self, share: int) -> None:
        self.ask("adjust", share)

    def _change(self, number: int) -> None:
        """From now on callers have other terms, as after a deploy."""
        first = self.limits[0]
        rates = [[rate, rate._replace(limit=rate.limit + 4), rate._replace(limit=1), rate] for rate in first.rates]
        chosen = tuple(some[(number + at) % 4] for at, some in enumerate(rates))
        self.terms = first._replace(rates=chosen)
        self.limits.append(self.terms)
        for caller in [caller for caller in self.waiting if caller.cost > min(rate.limit for rate in chosen)]:
            self.waiting.remove(caller)  # refused before any store is asked

    def _reset(self) -> None:
        self.changes += 1
        self.ask("reset")
        self.used.clear()  # forgotten on purpose

    def _usage(self) -> None:
        self.ask("usage")
