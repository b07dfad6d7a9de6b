"""The book of a rate limiter: in no window more than the limit is used, whatever callers do."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from django_tasklock.backends.contract.rates import Booked, Rate, Refused, Terms
from django_tasklock.backends.ledger import verbs as ledger_verbs
from django_tasklock.backends.ledger.book import TICK, RateBook
from django_tasklock.backends.ledger.state import State
from django_tasklock.rates.notation import parse_rates
from tests.support.rate_callers import most_within
from tests.support.rate_simulation import START, Simulation, random_steps, terms

SECOND = 1_000_000
HOUR = 3600 * SECOND
many = settings(max_examples=60, deadline=None)


def a_book(state: State, rate: str = "3/s", time: int = START, **more) -> RateBook:
    rates = tuple(one._replace(margin=0) for one in parse_rates(rate))
    return RateBook(state, Terms("x", rates, **more), time)


def play(limiter: Terms, steps: list[tuple]) -> Simulation:
    """Callers who do that, until each has had its turn."""
    simulation = Simulation(limiter)
    for step in steps:
        simulation.do(step)
    simulation.end()
    return simulation


@pytest.mark.slow
class TestNeverMoreThanTheLimit:
    @many
    @given(terms(), random_steps(without=("back", "change")))
    def test_at_the_callers(self, limiter, steps):
        """With refusals, cancels, unused grants, late wakers, stops and partial refunds. Gold standard 8.40."""
        used = [(caller.used, caller.cost) for caller in play(limiter, steps).used]
        for rate in limiter.rates:
            assert most_within(used, rate.window) <= rate.limit

    @many
    @given(terms(), random_steps(without=("back",)))
    def test_when_the_terms_change(self, limiter, steps):
        """Never above the greater limit, whoever goes without asking again."""
        simulation = play(limiter, steps)
        used = [(caller.used, caller.cost) for caller in simulation.used]
        for number, rate in enumerate(limiter.rates):
            assert most_within(used, rate.window) <= max(terms.rates[number].limit for terms in simulation.limits)

    @many
    @given(terms(), random_steps(without=("reset", "change")))
    def test_a_clock_that_steps_back_stalls_at_the_most(self, limiter, steps):
        """By the limiter's own clock no window has more than the limit."""
        slots = [(caller.slot, caller.cost) for caller in play(limiter, steps).used]
        for rate in limiter.rates:
            assert most_within(slots, rate.window) <= rate.limit

    @many
    @given(terms(), random_steps(without=("back", "reset", "settle")))
    def test_nothing_is_lost_for_ever(self, limiter, steps):
        """After an hour without anybody, a call goes at once."""
        simulation = play(limiter, [("reserve", 1, HOUR), *steps])
        simulation.time += HOUR
        answer = simulation.ask("reserve", 1, 0)
        assert isinstance(answer, Booked)
        assert answer.wait < TICK


class TestOrder:
    @many
    @given(terms(), st.lists(st.tuples(st.integers(0, 2 * SECOND), st.integers(1, 3)), min_size=2, max_size=40))
    def test_slots_are_booked_in_order_of_arrival(self, limiter, arrivals):
        """Not by lighter calls, either."""
        state, time, slots = State(), START, []
        for pause, cost in arrivals:
            time += pause
            units = min([cost, *(rate.limit for rate in limiter.rates)])
            answer = ledger_verbs.reserve(RateBook(state, limiter, time), units, HOUR)
            assert isinstance(answer, Booked)
            slots.append(answer.slot)
        assert slots == sorted(slots)

    def test_a_lower_settled_cost_moves_no_later_call_ahead(self):
        """Whoever waits already would be overtaken by whoever comes later."""
        state = State()
        heavy = ledger_verbs.reserve(a_book(state), 3, HOUR)
        assert ledger_verbs.reserve(a_book(state), 1, HOUR).wait == SECOND
        assert ledger_verbs.settle(a_book(state), 3, heavy.slot, heavy.edition, 0)
        assert ledger_verbs.reserve(a_book(state), 1, HOUR).wait == SECOND + 1

    def test_a_raised_limit_moves_no_later_call_ahead(self):
        """Nor after the last one has left the line: the one before it is the last then."""
        state = State()
        _, second, third = (ledger_verbs.reserve(a_book(state, "1/s"), 1, HOUR) for _ in range(3))
        assert third.wait == 2 * SECOND
        assert ledger_verbs.cancel(a_book(state, "1/s"), 1, third.slot, third.edition)
        assert ledger_verbs.reserve(a_book(state, "9/s"), 1, HOUR).wait == second.wait + 1 == SECOND + 1

    def test_a_stop_keeps_the_order(self):
        state = State()
        first = [ledger_verbs.reserve(a_book(state), 1, HOUR) for _ in range(5)]
        ledger_verbs.penalize(a_book(state, time=START + 1), 10 * SECOND, 0, HOUR)
        later = ledger_verbs.reserve(a_book(state, time=START + 2), 1, HOUR)
        waits = [ledger_verbs.resume(a_book(state, time=START + 2), 1, b.slot, b.edition, HOUR).wait for b in first[3:]]
        assert waits == sorted(waits)
        assert waits[0] == 11 * SECOND - 2
        assert later.wait == waits[-1] + 1


class TestTheLine:
    """A caller that resumes its slot before using it takes the first slot that is still good."""

    LATE = 100_000

    def a_line(self, number: int) -> tuple[State, Terms, list[Booked]]:
        state, limiter = State(), Terms("x", (Rate(10, SECOND, 50_000),))
        for _ in range(10):  # spread over the window, as calls are
            ledger_verbs.reserve(RateBook(state, limiter, START + 105_000 * _), 1, 0)
        now = START + SECOND
        return state, limiter, [
            ledger_verbs.reserve(RateBook(state, limiter, now), 1, HOUR) for _ in range(number)
        ]  # fmt: skip

    def resume(self, state: State, limiter: Terms, time: int, one: Booked) -> Booked:
        return ledger_verbs.resume(RateBook(state, limiter, time), 1, one.slot, one.edition, HOUR)

    def test_who_is_late_at_the_head_of_three_thousand_takes_the_next_slot(self):
        """And everybody behind him the next but one, as soon as he comes; the last a new one. None goes to the end."""
        state, limiter, booked = self.a_line(3000)
        standing = booked[10:]
        assert all(one.must_resume for one in standing)
        told = [one.time for one in standing]
        late = self.resume(state, limiter, standing[0].time + self.LATE, standing[0])
        assert late.time == told[1]
        assert late.wait < 10_000
        taken = [self.resume(state, limiter, max(one.time, late.time), one) for one in standing[1:]]
        assert [one.time for one in taken[:-1]] == told[2:]
        assert not any(one.must_resume for one in taken[:-1])
        assert taken[-1].time - told[-1] <= 110_000
        used = [(one.time, 1) for one in [*booked[:10], late, *taken]]
        assert most_within(used, SECOND) <= 10

    def test_a_taken_slot_is_neither_cancelled_nor_given_to_another_caller(self):
        state, limiter, booked = self.a_line(30)
        one = booked[20]
        taken = self.resume(state, limiter, one.time - 1000, one)
        assert (taken.time, taken.must_resume) == (one.time, False)
        assert not ledger_verbs.cancel(RateBook(state, limiter, one.time), 1, one.slot, one.edition)
        assert self.resume(state, limiter, one.time, one).time == booked[21].time
        assert self.resume(state, limiter, one.time, taken) == taken._replace(wait=0)


class TestGivingBack:
    def test_who_waits_longer_moves_up_on_waking(self):
        state = State()
        booked = [ledger_verbs.reserve(a_book(state, "1/s"), 1, HOUR) for _ in range(4)]
        ledger_verbs.cancel(a_book(state, "1/s"), 1, booked[1].slot, booked[1].edition)
        moved = ledger_verbs.resume(a_book(state, "1/s"), 1, booked[3].slot, booked[3].edition, HOUR)
        assert moved.time == booked[1].time
        assert ledger_verbs.reserve(a_book(state, "1/s"), 1, HOUR).time == booked[3].time

    def test_a_part_of_a_slot_is_enough_for_a_lighter_call(self):
        state = State()
        ledger_verbs.reserve(a_book(state), 3, HOUR)
        three = ledger_verbs.reserve(a_book(state), 3, HOUR)
        ledger_verbs.reserve(a_book(state), 3, HOUR)
        ledger_verbs.cancel(a_book(state), 3, three.slot, three.edition)
        assert ledger_verbs.reserve(a_book(state), 1, HOUR).time == three.time
        assert [rate.ahead for rate in ledger_verbs.usage(a_book(state)).rates] == [4], "the rest of it is not used"
        assert ledger_verbs.reserve(a_book(state), 1, HOUR).wait == 3 * SECOND

    @many
    @given(terms(), st.lists(st.sampled_from([1, 1, 1, 2]), min_size=1, max_size=60), st.randoms())
    def test_after_all_waiters_have_left_the_next_call_waits_one_window_at_most(self, limiter, costs, random):
        """However many had booked, and in whichever order they go: no wedging after a burst. Gold standard 8.40."""
        simulation = Simulation(limiter)
        for cost in costs:
            simulation.do(("reserve", cost, HOUR))
        while simulation.waiting:
            simulation.do(("cancel", random.randrange(1000)))
        wait = simulation.ask("reserve", 1, HOUR).wait
        assert wait <= limiter.longest_window + 1


class TestChangesUnderLoad:
    def test_a_lower_limit_holds_at_once_a_higher_one_too(self):
        """Gold standard 8.40: no wedging after a burst when the limit changes."""
        state = State()
        for _ in range(10):
            ledger_verbs.reserve(a_book(state, "10/s"), 1, 0)
        waits = [ledger_verbs.reserve(a_book(state, "2/s"), 1, HOUR).wait // 1000 for _ in range(3)]
        assert waits == [1000, 1000, 2000]
        assert ledger_verbs.reserve(a_book(state, "20/s", START + 10 * SECOND), 1, 0).wait == 0

    def test_after_a_raise_nobody_owns_a_slot_that_is_booked_anew(self):
        """Two callers would go at that time."""
        state = State()
        ledger_verbs.adjust(a_book(state, "10/s"), 100_000)
        before = [ledger_verbs.reserve(a_book(state, "10/s"), 1, HOUR) for _ in range(5)]
        ledger_verbs.adjust(a_book(state, "10/s"), 1_000_000)
        ledger_verbs.adjust(a_book(state, "10/s"), 100_000)
        anew = ledger_verbs.reserve(a_book(state, "10/s"), 1, HOUR)
        assert anew.slot == before[3].slot
        assert anew.edition != before[3].edition

    def test_after_a_raise_the_newest_that_stays_counts(self):
        """It had been set aside, as those after it were enough to fill a window."""
        state = State()
        booked = [ledger_verbs.reserve(a_book(state, "1/s"), 1, HOUR) for _ in range(9)]
        ledger_verbs.adjust(a_book(state, "1/s"), 100_000)
        ledger_verbs.adjust(a_book(state, "1/s"), 500_000)
        assert ledger_verbs.cancel(a_book(state, "1/s"), 1, booked[2].slot, booked[2].edition)
        assert ledger_verbs.reserve(a_book(state, "1/s"), 1, HOUR).wait >= 2 * SECOND

    def test_a_longer_window_counts_what_was_forgotten_since(self):
        """Bookings that the shorter window no longer needed are known to have been, not how many."""
        state = State()
        for turn in range(5):
            assert ledger_verbs.reserve(a_book(state, "1/s", START + turn * SECOND), 1, 0).wait == 0
        other = Terms("x", (Rate(1, SECOND, 0),))
        assert ledger_verbs.reserve(RateBook(state, other, START + 4 * SECOND), 1, HOUR).wait == SECOND


class TestAClockSetBack:
    @pytest.mark.parametrize("back", [2 * SECOND, 10 * HOUR])
    def test_bookings_stay_valid_and_waits_do_not_grow_after_a_step_back(self, back):
        """The limiter's own clock goes on from where it was: bookings hold, and who waits waits no longer."""
        state = State()
        ledger_verbs.reserve(a_book(state, "1/s"), 1, 0)
        second = ledger_verbs.reserve(a_book(state, "1/s"), 1, HOUR)
        third = ledger_verbs.reserve(a_book(state, "1/s", START - back), 1, HOUR)
        assert (second.wait, third.wait) == (SECOND, 2 * SECOND)
        asked = ledger_verbs.resume(a_book(state, "1/s", START - back + SECOND), 1, second.slot, second.edition, HOUR)
        assert (asked.slot, asked.wait) == (second.slot, 0)

    def test_calls_made_while_the_clock_was_ahead_delay_no_call_once_it_is_right(self):
        """It was ahead, and calls were made meanwhile."""
        state = State()
        for moment in (START, START + HOUR, START + HOUR + SECOND):
            ledger_verbs.reserve(a_book(state, "1/s", moment), 1, 0)
        assert ledger_verbs.reserve(a_book(state, "1/s", START + 2 * SECOND), 1, HOUR).wait == SECOND

    def test_a_stop_by_an_operator_may_be_longer_than_any_horizon(self):
        """A stop that was longer than one could book ahead used to be taken for a clock that was set back."""
        state = State()
        ledger_verbs.reserve(a_book(state), 1, 0)
        ledger_verbs.pause(a_book(state), 24 * HOUR)
        assert isinstance(ledger_verbs.reserve(a_book(state, time=START + SECOND), 1, HOUR), Refused)
        assert ledger_verbs.usage(a_book(state, time=START + SECOND)).paused == 24 * HOUR - SECOND


class TestAdaptiveLimit:
    def share(self, state: State, time: int, **more) -> int:
        return ledger_verbs.usage(a_book(state, "100/s", time, **more)).share

    def test_falls_once_a_window_not_below_its_floor(self):
        state, adaptive = State(), dict(min_share=400_000)
        for _ in range(3):
            ledger_verbs.penalize(a_book(state, "100/s", **adaptive), 0, 0, HOUR)
        assert self.share(state, START, **adaptive) == 700_000
        for turn in range(1, 4):
            ledger_verbs.penalize(a_book(state, "100/s", START + turn * SECOND, **adaptive), 0, 0, HOUR)
        assert self.share(state, START, **adaptive) == 400_000
        assert ledger_verbs.usage(a_book(state, "100/s", START, **adaptive)).rates[0].limit == 40

    def test_rises_only_while_it_is_used(self):
        state, adaptive = State(), dict(min_share=400_000)
        ledger_verbs.penalize(a_book(state, "100/s", **adaptive), 0, 0, HOUR)
        for turn in range(1, 5):
            ledger_verbs.reserve(a_book(state, "100/s", START + turn * SECOND, **adaptive), 10, 0)
        assert self.share(state, START + 5 * SECOND, **adaptive) == 700_000
        for turn in range(5, 9):
            ledger_verbs.reserve(a_book(state, "100/s", START + turn * SECOND, **adaptive), 40, 0)
        assert self.share(state, START + 9 * SECOND, **adaptive) == 730_000
