"""Random plays of callers of one limiter: what property tests of the book and of the scripts draw and judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from django_tasklock.backends import ledger_verbs
from django_tasklock.backends.base_rates import Booked
from django_tasklock.backends.ledger import Ledger
from django_tasklock.backends.ledger_state import State
from django_tasklock.rates import Pushback, Rate, Terms

__all__ = ["START", "Place", "Play", "most_in_a_window", "plays", "terms"]

START = 1_800_000_000_000_000
HOUR = 3_600_000_000

_rates = st.builds(
    Rate,
    limit=st.sampled_from([1, 2, 3, 5, 10]),
    window=st.sampled_from([1_000_000, 1_000_003, 7_000_000]),
    margin=st.sampled_from([0, 1000, 50_000, 300_000]),
)
_great = st.builds(Rate, limit=st.sampled_from([1001, 5000]), window=st.just(60_000_000), margin=st.just(50_000))
_sets = st.one_of(
    st.tuples(_rates),
    st.lists(_rates, min_size=2, max_size=3, unique_by=lambda rate: rate.window).map(tuple),
    st.tuples(_great),
    st.tuples(_rates, _great),
)


def terms(algorithms: Sequence[str] = ("window",), horizon: int = HOUR) -> st.SearchStrategy[Terms]:
    """Limiters."""
    return st.builds(
        Terms,
        name=st.just("play"),
        rates=_sets,
        algorithm=st.sampled_from(list(algorithms)),
        burst=st.integers(0, 3),
        cold_wait=st.booleans(),
        floor=st.sampled_from([0, 100_000, 500_000]),
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
    "cancel": [st.tuples(st.just("cancel"), st.integers(0, 30))],
    "unused": [st.tuples(st.just("unused"), st.integers(0, 5))],
    "wake": [st.tuples(st.just("wake"), st.integers(0, 30))],
    "penalize": [st.tuples(st.just("penalize"), st.sampled_from([100_000, 2_000_000, 90_000_000]))],
    "settle": [st.tuples(st.just("settle"), st.integers(0, 5), st.integers(0, 4))],
    "reset": [st.tuples(st.just("reset"))],
    "use": [st.tuples(st.just("use"))],
    "back": [st.tuples(st.just("back"), st.sampled_from([1000, 5_000_000, 100 * HOUR]))],
}


def plays(without: Sequence[str] = ()) -> st.SearchStrategy[list[tuple]]:
    """What happens, in order."""
    steps = [step for name, some in _steps.items() if name not in without for step in some]
    return st.lists(st.one_of(steps), min_size=20, max_size=60)


@dataclass
class Place:
    """What a caller was told."""

    cost: int
    slot: int
    epoch: int
    due: int
    """When it is its turn, by the store's clock, as the caller was told."""
    until: int = 0
    """As long as this the caller goes without asking."""
    heard: int = 0
    """How often the limiter had been changed when the caller last heard of it."""
    missed: int = 0
    used: int = 0
    """When it was used; 0: not yet."""


@dataclass
class Play:
    """Callers and a book. ``do`` returns what the store answered; ``ask`` may be overridden to ask another store."""

    terms: Terms
    time: int = START
    state: State = field(default_factory=State)
    waiting: list[Place] = field(default_factory=list)
    used: list[Place] = field(default_factory=list)
    changes: int = 0
    """Stops, resets and clocks set back so far: after one of them callers ask."""

    def ask(self, verb: str, *arguments: object) -> object:
        """The answer of the book."""
        state = State(self.state.text()) if verb == "use" else self.state  # a look leaves nothing behind
        book = Ledger(state, self.terms, self.time)
        if book.rebuilt:
            self.state = state
        return getattr(ledger_verbs, verb)(book, *arguments)

    def do(self, step: tuple) -> None:
        """One step."""
        getattr(self, f"_{step[0]}")(*step[1:])

    def end(self) -> None:
        """Everybody who waits gets his turn."""
        for _ in range(1000):
            if not self.waiting:
                return
            self.time = max(self.time, min(place.due for place in self.waiting))
            self._turn(0)
        raise AssertionError("somebody waits for ever")

    def _spaced(self, cost: int) -> None:
        self._reserve(cost, HOUR, True)

    def _reserve(self, cost: int, longest: int, *spaced: bool) -> None:
        cost = min([cost, *(rate.limit for rate in self.terms.rates)])  # more is refused before any store is asked
        answer = self.ask("reserve", cost, longest, *spaced)
        if isinstance(answer, Booked):
            assert answer.wait <= longest
            place = Place(cost, answer.slot, answer.epoch, 0)
            self._told(place, answer)
            self.waiting.append(place)
        self._go(0)

    def _told(self, place: Place, answer: Booked) -> None:
        place.slot, place.epoch, place.due = answer.slot, answer.epoch, self.time + max(0, answer.wait)
        place.until = self.time + answer.wait + self.terms.margin + answer.leeway
        place.heard = self.changes

    def _pass(self, microseconds: int) -> None:
        self.time += microseconds

    def _back(self, microseconds: int) -> None:
        self.changes += 1
        self.time -= microseconds

    def _turn(self, late: int) -> None:
        """Time goes on to the next caller's turn, who wakes somewhat late; all that are due go."""
        if self.waiting:
            self.time = max(self.time, min(place.due for place in self.waiting) + late)
            self._go(late)

    def _go(self, late: int) -> None:
        for place in sorted(self.waiting, key=lambda place: place.due):
            if place.due <= self.time:
                self._resume(place)

    def _wake(self, number: int) -> None:
        if self.waiting:
            self._resume(self.waiting[number % len(self.waiting)])

    def _resume(self, place: Place) -> None:
        if place.heard != self.changes or not place.due <= self.time <= place.until:
            leeway = place.missed * 70_000
            answer = self.ask("resume", place.cost, place.slot, place.epoch, HOUR, False, leeway)
            if not isinstance(answer, Booked):
                self.waiting.remove(place)
                return
            place.missed += answer.slot > place.slot
            self._told(place, answer)
            if place.due > self.time:
                return
        self.waiting.remove(place)
        place.used = self.time
        self.used.append(place)

    def _cancel(self, number: int) -> None:
        if self.waiting:
            place = self.waiting.pop(number % len(self.waiting))
            self.ask("cancel", place.cost, place.slot, place.epoch)

    def _unused(self, number: int) -> None:
        """Granted, and then the call was not made."""
        if self.used:
            place = self.used.pop(-1 - number % len(self.used))
            self.ask("cancel", place.cost, place.slot, place.epoch)

    def _settle(self, number: int, less: int) -> None:
        if self.used:
            place = self.used[-1 - number % len(self.used)]
            actual = max(0, place.cost - less)
            self.ask("settle", place.cost, place.slot, place.epoch, actual)
            place.cost = actual

    def _penalize(self, microseconds: int) -> None:
        self.changes += 1
        self.ask("penalize", Pushback(microseconds), HOUR)

    def _reset(self) -> None:
        self.changes += 1
        self.ask("reset")
        self.used.clear()  # forgotten on purpose

    def _use(self) -> None:
        self.ask("use")


def most_in_a_window(used: Sequence[tuple[int, int]], window: int) -> int:
    """The most units in any half-open window; ``used``: (time, units)."""
    used = sorted(used)
    most = total = start = 0
    for time, units in used:
        total += units
        while used[start][0] <= time - window:
            total -= used[start][1]
            start += 1
        most = max(most, total)
    return most
