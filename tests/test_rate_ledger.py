"""The book of a rate limiter: in no window more than the limit is used, whatever callers do."""

from __future__ import annotations

import itertools

from hypothesis import given, settings, strategies as st

from django_tasklock.backends import ledger_verbs
from django_tasklock.backends.base_rates import Booked, Refused
from django_tasklock.backends.ledger import Ledger
from django_tasklock.backends.ledger_state import State
from django_tasklock.rates import Pushback, Rate, Terms, parse
from tests.support.rate_plays import START, Play, most_in_a_window, plays, terms

SECOND = 1_000_000
HOUR = 3600 * SECOND
many = settings(max_examples=60, deadline=None)


def a_book(state: State, rate: str = "3/s", time: int = START, **more) -> Ledger:
    rates = tuple(one._replace(margin=0) for one in parse(rate))
    return Ledger(state, Terms("x", rates, **more), time)


class TestNeverMoreThanTheLimit:
    @many
    @given(terms(), plays(without=("back",)))
    def test_at_the_callers(self, limiter, steps):
        """With refusals, cancels, unused grants, late wakers, stops and partial refunds. Gold standard 8.40."""
        play = Play(limiter)
        for step in steps:
            play.do(step)
        play.end()
        for rate in limiter.rates:
            used = [(place.used, place.cost) for place in play.used]
            assert most_in_a_window(used, rate.window) <= rate.limit

    def test_one_that_is_always_late(self):
        """It is given more leeway each time, until that is enough; who is behind it waits as much longer."""
        play = Play(Terms("x", (Rate(1, SECOND, 50_000),)))
        play.do(("reserve", 1, HOUR))
        for _ in range(3):
            play.do(("reserve", 1, HOUR))
        turns = 0
        while play.waiting:
            play.do(("turn", 100_000))
            turns += 1
            assert turns < 20
        used = sorted(place.used for place in play.used)
        assert all(later - earlier >= SECOND for earlier, later in itertools.pairwise(used))

    def test_who_comes_behind_a_place_with_leeway_waits_for_the_end_of_it(self):
        state, limiter = State(), Terms("x", (Rate(1, SECOND, 50_000),))
        first = ledger_verbs.reserve(Ledger(state, limiter, START), 1, 0)
        again = (1, first.slot, first.epoch, HOUR, False, 70_000)
        late = ledger_verbs.resume(Ledger(state, limiter, START + 60_000), *again)
        assert (late.wait, late.leeway) == (0, 70_000)
        behind = ledger_verbs.reserve(Ledger(state, limiter, START + 60_000), 1, HOUR)
        assert behind.time - (late.time + 50_000 + late.leeway) == SECOND

    def test_one_that_is_late_and_the_next_that_is_not(self):
        """That is what the margin is for."""
        play = Play(Terms("x", (Rate(1, SECOND, 50_000),)))
        for step in [("reserve", 1, HOUR)] * 3 + [("turn", 50_000), ("turn", 0)]:
            play.do(step)
        play.end()
        used = [place.used for place in play.used]
        assert used[1] - used[0] > SECOND + 50_000
        assert used[2] - used[1] >= SECOND

    @many
    @given(terms(), plays(without=("back", "reset", "settle")))
    def test_nothing_is_lost_for_ever(self, limiter, steps):
        """After an hour without anybody, a call goes at once."""
        play = Play(limiter)
        play.do(("reserve", 1, HOUR))
        for step in steps:
            play.do(step)
        play.end()
        play.time += HOUR
        answer = play.ask("reserve", 1, 0)
        assert isinstance(answer, Booked)
        assert answer.wait <= 0

    @many
    @given(terms(("paced",)), plays(without=("back", "settle")))
    def test_paced(self, limiter, steps):
        play = Play(limiter)
        for step in steps:
            play.do(step)
        play.end()
        for rate in limiter.rates:
            heavy = max((place.cost for place in play.used), default=1)
            used = [(place.used, place.cost) for place in play.used]
            assert most_in_a_window(used, rate.window) <= rate.limit + heavy - 1

    @many
    @given(terms(("bucket",)), plays(without=("back", "settle")))
    def test_bucket(self, limiter, steps):
        """Burst and rate together, in any window."""
        play = Play(limiter)
        for step in steps:
            if step[0] not in ("reserve", "spaced") or step[1] == 1:  # no bucket takes more at once
                play.do(step)
        play.end()
        for rate in limiter.rates:
            used = [(place.used, place.cost) for place in play.used]
            assert most_in_a_window(used, rate.window) <= rate.limit + limiter.burst_of(rate)

    @many
    @given(terms(("counter",)), plays(without=("back", "settle")))
    def test_counter(self, limiter, steps):
        """Twice the limit in the worst window, across the edge of two; never more."""
        play = Play(limiter)
        for step in steps:
            play.do(step)
        play.end()
        for rate in limiter.rates:
            used = [(place.used, place.cost) for place in play.used]
            assert most_in_a_window(used, rate.window) <= 2 * rate.limit

    @many
    @given(terms(("window",)), plays(without=("reset",)))
    def test_a_clock_that_steps_back_stalls_at_the_most(self, limiter, steps):
        """By the limiter's own clock no window has more than the limit, unless it was set back by hours."""
        play = Play(limiter)
        for step in steps:
            if step[0] != "back" or step[1] < HOUR:
                play.do(step)
        play.end()
        for rate in limiter.rates:
            slots = [(place.slot, place.cost) for place in play.used]
            assert most_in_a_window(slots, rate.window) <= rate.limit


class TestOrder:
    @many
    @given(terms(), st.lists(st.tuples(st.integers(0, 2 * SECOND), st.integers(1, 3)), min_size=2, max_size=40))
    def test_nobody_is_overtaken(self, limiter, arrivals):
        """Not by lighter calls, either."""
        state, time, slots = State(), START, []
        for pause, cost in arrivals:
            time += pause
            units = min([cost, *(rate.limit for rate in limiter.rates)])
            answer = ledger_verbs.reserve(Ledger(state, limiter, time), units, HOUR)
            assert isinstance(answer, Booked)
            slots.append(answer.slot)
        assert slots == sorted(slots)

    def test_a_light_call_does_not_slip_in_before_a_heavy_one(self):
        state = State()
        assert ledger_verbs.reserve(a_book(state), 2, HOUR).wait == 0
        assert ledger_verbs.reserve(a_book(state), 2, HOUR).wait == SECOND
        assert ledger_verbs.reserve(a_book(state), 1, HOUR).wait == SECOND

    def test_nobody_slips_in_where_a_call_cost_less(self):
        """Who waits already would be overtaken by whoever comes later."""
        state = State()
        heavy = ledger_verbs.reserve(a_book(state), 3, HOUR)
        assert ledger_verbs.reserve(a_book(state), 1, HOUR).wait == SECOND
        assert ledger_verbs.settle(a_book(state), 3, heavy.slot, heavy.epoch, 0)
        assert ledger_verbs.reserve(a_book(state), 1, HOUR).wait == SECOND

    def test_nobody_slips_in_when_the_limit_is_raised(self):
        """Nor after the last one has left the line: the one before it is the last then."""
        state = State()
        _, second, third = (ledger_verbs.reserve(a_book(state, "1/s"), 1, HOUR) for _ in range(3))
        assert third.wait == 2 * SECOND
        assert ledger_verbs.cancel(a_book(state, "1/s"), 1, third.slot, third.epoch)
        assert ledger_verbs.reserve(a_book(state, "9/s"), 1, HOUR).wait == second.wait == SECOND

    def test_a_stop_keeps_the_order(self):
        state = State()
        first = [ledger_verbs.reserve(a_book(state), 1, HOUR) for _ in range(5)]
        ledger_verbs.penalize(a_book(state, time=START + 1), Pushback(10 * SECOND), HOUR)
        later = ledger_verbs.reserve(a_book(state, time=START + 2), 1, HOUR)
        waits = [ledger_verbs.resume(a_book(state, time=START + 2), 1, b.slot, b.epoch, HOUR).wait for b in first[3:]]
        assert waits == sorted(waits)
        assert waits[0] == 11 * SECOND - 2
        assert later.wait == waits[-1]


class TestRefusing:
    def test_says_how_long_it_would_have_taken_and_books_nothing(self):
        state = State()
        for _ in range(3):
            ledger_verbs.reserve(a_book(state), 1, 0)
        before = {key: value for key, value in state.meta.items() if key != "refused"}
        refused = ledger_verbs.reserve(a_book(state, time=START + 400_000), 1, 599_999)
        assert refused == Refused(600_000, START, 0)
        assert {key: value for key, value in state.meta.items() if key != "refused"} == before
        assert ledger_verbs.reserve(a_book(state, time=START + 400_000), 1, 600_000).wait == 600_000

    def test_all_rates_or_none(self):
        state = State()
        rates = "5/s, 6/h"
        for _ in range(5):
            ledger_verbs.reserve(a_book(state, rates), 1, 0)
        assert ledger_verbs.reserve(a_book(state, rates), 1, 2 * SECOND).wait == SECOND
        refused = ledger_verbs.reserve(a_book(state, rates, time=START + 2 * SECOND), 1, 60 * SECOND)
        assert refused.wait == 3598 * SECOND
        used = ledger_verbs.use(a_book(state, rates, time=START + 3 * SECOND)).rates
        assert [rate.used for rate in used] == [0, 6]


class TestGivingBack:
    def test_the_last_place_is_as_if_it_had_never_been_booked(self):
        state = State()
        for _ in range(4):
            last = ledger_verbs.reserve(a_book(state), 1, HOUR)
        assert last.wait == SECOND
        assert ledger_verbs.cancel(a_book(state), 1, last.slot, last.epoch)
        assert not state.free
        assert ledger_verbs.reserve(a_book(state), 1, HOUR).wait == SECOND

    def test_another_goes_to_who_comes_next(self):
        state = State()
        booked = [ledger_verbs.reserve(a_book(state, "1/s"), 1, HOUR) for _ in range(4)]
        ledger_verbs.cancel(a_book(state, "1/s"), 1, booked[1].slot, booked[1].epoch)
        assert ledger_verbs.use(a_book(state, "1/s")).free == 1
        assert ledger_verbs.reserve(a_book(state, "1/s"), 1, HOUR).slot == booked[1].slot
        assert ledger_verbs.reserve(a_book(state, "1/s"), 1, HOUR).wait == 4 * SECOND

    def test_who_waits_longer_moves_up_on_waking(self):
        state = State()
        booked = [ledger_verbs.reserve(a_book(state, "1/s"), 1, HOUR) for _ in range(4)]
        ledger_verbs.cancel(a_book(state, "1/s"), 1, booked[1].slot, booked[1].epoch)
        moved = ledger_verbs.resume(a_book(state, "1/s"), 1, booked[3].slot, booked[3].epoch, HOUR)
        assert moved.slot == booked[1].slot
        assert ledger_verbs.reserve(a_book(state, "1/s"), 1, HOUR).slot == booked[3].slot

    def test_a_part_of_a_place_is_enough_for_a_lighter_call(self):
        state = State()
        ledger_verbs.reserve(a_book(state), 3, HOUR)
        three = ledger_verbs.reserve(a_book(state), 3, HOUR)
        ledger_verbs.reserve(a_book(state), 3, HOUR)
        ledger_verbs.cancel(a_book(state), 3, three.slot, three.epoch)
        assert [ledger_verbs.reserve(a_book(state), 1, HOUR).slot for _ in range(3)] == [three.slot] * 3
        assert ledger_verbs.reserve(a_book(state), 1, HOUR).wait == 3 * SECOND

    def test_a_missed_place_is_exchanged_and_not_counted(self):
        state, margin = State(), Terms("x", parse("2/s"))
        first, late = (ledger_verbs.reserve(Ledger(state, margin, START), 1, HOUR) for _ in range(2))
        other = ledger_verbs.resume(Ledger(state, margin, START + 50_001), 1, late.slot, late.epoch, HOUR)
        assert other.wait == 0
        assert ledger_verbs.use(Ledger(state, margin, START + 50_002)).rates[0].used == 2
        assert (
            ledger_verbs.resume(Ledger(state, margin, START + 50_000), 1, first.slot, first.epoch, HOUR).slot == START
        )

    def test_a_missed_place_that_nobody_took_is_not_counted(self):
        state = State()
        booked = [ledger_verbs.reserve(a_book(state), 1, HOUR) for _ in range(7)]
        ledger_verbs.cancel(a_book(state), 1, booked[3].slot, booked[3].epoch)
        later = START + SECOND + 1
        assert ledger_verbs.use(a_book(state, time=later)).rates[0].used == 3
        assert isinstance(ledger_verbs.reserve(a_book(state, time=later), 1, 0), Refused)
        assert ledger_verbs.use(a_book(state, time=later)).rates[0].used == 2

    @many
    @given(terms(), st.lists(st.sampled_from([1, 1, 1, 2]), min_size=1, max_size=60), st.randoms())
    def test_when_all_who_wait_leave_nobody_waits_for_them(self, limiter, costs, random):
        """However many had booked, and in whichever order they go: no wedging after a burst. Gold standard 8.40."""
        play = Play(limiter)
        for cost in costs:
            play.do(("reserve", cost, HOUR))
        while play.waiting:
            play.do(("cancel", random.randrange(1000)))
        wait = play.ask("reserve", 1, HOUR).wait
        assert wait <= limiter.longest + (limiter.longest if limiter.cold_wait else 0)

    def test_of_an_earlier_epoch_nothing(self):
        state = State()
        last = ledger_verbs.reserve(a_book(state), 1, HOUR)
        ledger_verbs.reset(a_book(state, time=START + 1))
        assert not ledger_verbs.cancel(a_book(state, time=START + 2), 1, last.slot, last.epoch)


class TestChangesUnderLoad:
    def test_a_lower_limit_holds_at_once_a_higher_one_too(self):
        """Gold standard 8.40: no wedging after a burst when the limit changes."""
        state = State()
        for _ in range(10):
            ledger_verbs.reserve(a_book(state, "10/s"), 1, 0)
        assert ledger_verbs.reserve(a_book(state, "2/s"), 1, HOUR).wait == SECOND
        assert ledger_verbs.reserve(a_book(state, "2/s"), 1, HOUR).wait == SECOND
        assert ledger_verbs.reserve(a_book(state, "2/s"), 1, HOUR).wait == 2 * SECOND
        assert ledger_verbs.reserve(a_book(state, "20/s", START + 10 * SECOND), 1, 0).wait == 0

    @many
    @given(st.lists(st.tuples(st.sampled_from([2, 5, 9]), st.integers(0, 700_000)), min_size=1, max_size=60))
    def test_never_more_than_the_greatest_of_the_limits(self, calls):
        state, time, used = State(), START, []
        for limit, pause in calls:
            time += pause
            answer = ledger_verbs.reserve(a_book(state, f"{limit}/s", time), 1, 0)
            if isinstance(answer, Booked):
                used.append((time, 1))
        assert most_in_a_window(used, SECOND) <= 9

    def test_a_longer_window_counts_what_was_forgotten_since(self):
        """Bookings that the shorter window no longer needed are known to have been, not how many."""
        state = State()
        for turn in range(5):
            assert ledger_verbs.reserve(a_book(state, "1/s", START + turn * SECOND), 1, 0).wait == 0
        other = Terms("x", (Rate(1, SECOND, 0),))
        assert ledger_verbs.reserve(Ledger(state, other, START + 4 * SECOND), 1, HOUR).wait == SECOND


class TestAClockSetBack:
    def test_by_little_stalls(self):
        state = State()
        ledger_verbs.reserve(a_book(state, "1/s"), 1, 0)
        assert ledger_verbs.reserve(a_book(state, "1/s", START - 5 * SECOND), 1, HOUR).wait == 6 * SECOND

    def test_by_more_than_the_horizon_begins_anew_after_a_window(self):
        """Or it would be wedged for as long as the clock was set back."""
        state = State()
        old = ledger_verbs.reserve(a_book(state, "1/s"), 1, 0)
        new = ledger_verbs.reserve(a_book(state, "1/s", START - 10 * HOUR), 1, HOUR)
        assert new.rebuilt
        assert new.wait == SECOND
        assert new.epoch > old.epoch


class TestAStopOfTheClock:
    def test_is_never_shortened(self):
        state = State()
        assert ledger_verbs.penalize(a_book(state), Pushback(10 * SECOND), HOUR).wait == 10 * SECOND
        assert ledger_verbs.penalize(a_book(state), Pushback(SECOND), HOUR).wait == 10 * SECOND
        until = Pushback(START + 20 * SECOND, absolute=True)
        assert ledger_verbs.penalize(a_book(state, time=START + SECOND), until, HOUR).wait == 19 * SECOND

    def test_has_a_cap(self):
        assert ledger_verbs.penalize(a_book(State()), Pushback(100 * HOUR), HOUR).wait == HOUR

    def test_a_date_that_has_passed_stops_nothing(self):
        state = State()
        assert ledger_verbs.penalize(a_book(state), Pushback(5, absolute=True), HOUR).wait == 0
        assert ledger_verbs.reserve(a_book(state), 1, 0).wait == 0


class TestAdaptiveLimit:
    def share(self, state: State, time: int, **more) -> int:
        return ledger_verbs.use(a_book(state, "100/s", time, **more)).share

    def test_falls_once_a_window_not_below_its_floor(self):
        state, adaptive = State(), dict(floor=400_000)
        for _ in range(3):
            ledger_verbs.penalize(a_book(state, "100/s", **adaptive), Pushback(0), HOUR)
        assert self.share(state, START, **adaptive) == 700_000
        for turn in range(1, 4):
            ledger_verbs.penalize(a_book(state, "100/s", START + turn * SECOND, **adaptive), Pushback(0), HOUR)
        assert self.share(state, START, **adaptive) == 400_000
        assert ledger_verbs.use(a_book(state, "100/s", START, **adaptive)).rates[0].limit == 40

    def test_rises_only_while_it_is_used(self):
        state, adaptive = State(), dict(floor=400_000)
        ledger_verbs.penalize(a_book(state, "100/s", **adaptive), Pushback(0), HOUR)
        for turn in range(1, 5):
            ledger_verbs.reserve(a_book(state, "100/s", START + turn * SECOND, **adaptive), 10, 0)
        assert self.share(state, START + 5 * SECOND, **adaptive) == 700_000
        for turn in range(5, 9):
            ledger_verbs.reserve(a_book(state, "100/s", START + turn * SECOND, **adaptive), 40, 0)
        assert self.share(state, START + 9 * SECOND, **adaptive) == 730_000

    def test_rises_to_the_configured_limit_and_no_further(self):
        state, adaptive = State(), dict(floor=400_000)
        ledger_verbs.adjust(a_book(state, "100/s", **adaptive), 975_000)
        for turn in range(1, 9):
            ledger_verbs.reserve(a_book(state, "100/s", START + turn * SECOND, **adaptive), 99, 0)
        assert self.share(state, START + 9 * SECOND, **adaptive) == 1_000_000

    def test_is_off_by_default(self):
        state = State()
        ledger_verbs.penalize(a_book(state, "100/s"), Pushback(0), HOUR)
        assert self.share(state, START) == 1_000_000


def test_the_book_survives_being_written_down():
    play = Play(Terms("x", parse("5/s, 2000/h")))
    for _ in range(12):
        play.do(("reserve", 1, HOUR))
    play.do(("cancel", 3))
    again = State(play.state.text())
    assert (again.meta, again.rings) == (play.state.meta, play.state.rings)
    assert [tuple(entry) for entry in again.free] == play.state.free
    assert again.text() == play.state.text()
