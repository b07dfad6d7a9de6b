"""The contract of a store that has rate limits, for ``RateLimiter``."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from asgiref.sync import async_to_sync

from django_tasklock.backends.contract.rates import Booked, Pushback, Rate, RateStore, Refused, Terms
from django_tasklock.backends.contract.stores import LockStore
from tests.contract.conformance.store import StoreContract
from tests.support.stores import eventually

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
LONG = 1000 * HOUR
"""In microseconds, as in the store."""
ROUNDED = 1000
"""The rounding error of a store that counts in milliseconds, in microseconds."""


class RateContract(StoreContract):
    """No window has more calls than the limit, each call gets a time, and no call is overtaken by a later one."""

    @pytest.fixture
    def rates(self, backend: LockStore) -> RateStore:
        """Return the rate limits of an empty store. ``clear`` must delete them, too."""
        return backend.rates

    # Reserving

    def test_as_many_as_the_limit_go_at_once_and_the_next_after_the_window(self, rates: RateStore) -> None:
        terms = a_limit(3, HOUR)
        first = [booked(rates.reserve(terms, 1, 0)) for _ in range(3)]
        assert [one.wait < ROUNDED for one in first] == [True] * 3
        later = [booked(rates.reserve(terms, 1, LONG)) for _ in range(20)]
        assert all(one.wait > 0 for one in later)
        assert_within([*first, *later], 3, HOUR)
        assert later[0].time - first[0].time <= HOUR + 2 * terms.margin + MINUTE  # not much later than necessary

    def test_no_call_is_overtaken_not_even_by_a_lighter_one(self, rates: RateStore) -> None:
        terms = a_limit(3, HOUR)
        answers = [booked(rates.reserve(terms, cost, LONG)) for cost in (2, 2, 1, 3, 1, 1)]
        assert [one.slot for one in answers] == sorted(one.slot for one in answers)
        assert len({one.slot for one in answers}) == 6
        assert answers[1].time - answers[0].time >= HOUR

    def test_a_refusal_says_how_long_it_would_have_taken_and_books_nothing(self, rates: RateStore) -> None:
        terms = a_limit(2, HOUR)
        for _ in range(2):
            booked(rates.reserve(terms, 1, 0))
        refused = rates.reserve(terms, 1, MINUTE)
        assert isinstance(refused, Refused)
        assert HOUR / 2 < refused.wait <= HOUR + 2 * terms.margin
        use = rates.usage(terms)
        assert [(rate.limit, rate.used, rate.ahead) for rate in use.rates] == [(2, 2, 0)]
        assert use.refused == 1

    def test_of_several_rates_all_are_booked_or_none(self, rates: RateStore) -> None:
        terms = Terms("api", (Rate(2, MINUTE, SECOND), Rate(3, HOUR, SECOND)), horizon=LONG)
        answers = [booked(rates.reserve(terms, 1, LONG)) for _ in range(4)]
        assert_within(answers, 2, MINUTE)
        assert_within(answers, 3, HOUR)
        assert isinstance(rates.reserve(terms, 1, MINUTE), Refused)
        assert [rate.used + rate.ahead for rate in rates.usage(terms).rates] == [4, 4]

    def test_limiters_do_not_see_each_other(self, rates: RateStore) -> None:
        names = ["api", "Api", "a b", "ü/ñ", "x:*?[]", "%s%d", "api:1"]
        for name in names:
            booked(rates.reserve(a_limit(1, HOUR, name), 1, 0))
            assert isinstance(rates.reserve(a_limit(1, HOUR, name), 1, 0), Refused)
        assert sorted(rates.names()) == sorted(names)

    def test_another_object_for_the_same_store_sees_what_is_booked(self, rates: RateStore) -> None:
        terms = a_limit(1, HOUR)
        mine = booked(rates.reserve(terms, 1, 0))
        other = self.make()
        assert isinstance(other.rates.reserve(terms, 1, 0), Refused)
        assert other.rates.cancel(terms, 1, mine.slot, mine.edition)
        other.close_idle()
        other.close()
        booked(rates.reserve(terms, 1, 0))

    def test_of_many_threads_no_more_than_the_limit_go(self, backend: LockStore, rates: RateStore) -> None:
        terms = a_limit(10, HOUR)
        answers: list[Booked | Refused] = []
        ready = threading.Barrier(4)

        def call() -> None:
            try:
                ready.wait()
                answers.extend([rates.reserve(terms, 1, 0) for _ in range(5)])
            finally:
                backend.close_idle()

        threads = [threading.Thread(target=call) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(answers) == 20
        assert sum(isinstance(one, Booked) for one in answers) == 10

    def test_reserve_many_books_until_the_first_refusal(self, rates: RateStore) -> None:
        terms = a_limit(2, HOUR)
        answers = rates.reserve_many(terms, 1, HOUR + MINUTE, 10)
        taken = [one for one in answers if isinstance(one, Booked)]
        assert isinstance(answers[-1], Refused)
        assert len(taken) == len(answers) - 1 >= 3
        assert_within(taken, 2, HOUR)

    def test_coroutines_ask_in_threads(self, rates: RateStore) -> None:
        async def main() -> None:
            terms = a_limit(1, HOUR)
            mine = booked(await rates.in_thread(rates.reserve, terms, 1, 0))
            assert isinstance(await rates.in_thread(rates.reserve, terms, 1, 0), Refused)
            assert await rates.in_thread(rates.cancel, terms, 1, mine.slot, mine.edition)

        async_to_sync(main)()

    # Asking again

    def test_resuming_too_early_returns_the_same_time(self, rates: RateStore) -> None:
        terms = a_limit(1, HOUR)
        booked(rates.reserve(terms, 1, 0))
        mine = booked(rates.reserve(terms, 1, LONG))
        again = booked(rates.resume(terms, 1, mine.slot, mine.edition, LONG))
        assert (again.slot, again.edition) == (mine.slot, mine.edition)
        assert abs(again.time - mine.time) <= ROUNDED
        assert 0 < again.wait <= mine.wait

    def test_resuming_within_the_margin_of_the_slot_needs_no_wait(self, rates: RateStore) -> None:
        terms = a_limit(1, HOUR, margin=10 * MINUTE)
        mine = booked(rates.reserve(terms, 1, 0))
        again = booked(rates.resume(terms, 1, mine.slot, mine.edition, 0))
        assert again.slot == mine.slot
        assert again.wait < ROUNDED
        assert isinstance(rates.reserve(terms, 1, 0), Refused)

    def test_resuming_too_late_books_another_slot(self, rates: RateStore) -> None:
        terms = a_limit(1, SECOND // 5, margin=1000)
        mine = booked(rates.reserve(terms, 1, 0))
        eventually(lambda: rates.usage(terms).time > mine.time + SECOND // 5)
        again = booked(rates.resume(terms, 1, mine.slot, mine.edition, LONG))
        assert again.slot > mine.slot
        assert again.time - mine.time >= SECOND // 5

    def test_who_waits_for_long_and_is_late_takes_the_next_slot_and_who_is_behind_the_one_after(
        self, rates: RateStore
    ) -> None:
        terms = a_limit(1, SECOND * 6 // 5, margin=SECOND // 20)
        _, first, second = (booked(rates.reserve(terms, 1, LONG)) for _ in range(3))
        assert first.must_resume
        eventually(lambda: rates.usage(terms).time > first.time + SECOND // 10)
        late = booked(rates.resume(terms, 1, first.slot, first.edition, LONG))
        assert late.time >= second.time - ROUNDED
        assert not late.must_resume
        assert not rates.cancel(terms, 1, second.slot, second.edition)  # it is the late one's now
        behind = booked(rates.resume(terms, 1, second.slot, second.edition, LONG))
        assert_within([late, behind], 1, SECOND * 6 // 5)

    # Giving back

    def test_a_cancelled_slot_goes_to_the_next_caller_and_is_cancelled_once(self, rates: RateStore) -> None:
        terms = a_limit(1, HOUR)
        _, mine, last = (booked(rates.reserve(terms, 1, LONG)) for _ in range(3))
        assert rates.cancel(terms, 1, mine.slot, mine.edition)
        assert not rates.cancel(terms, 1, mine.slot, mine.edition)
        assert rates.usage(terms).free == 1
        again = booked(rates.reserve(terms, 1, LONG))
        assert abs(again.time - mine.time) <= SECOND
        assert again.time < last.time
        assert not rates.cancel(terms, 1, mine.slot, mine.edition)  # it is another caller's now
        assert booked(rates.reserve(terms, 1, LONG)).time > last.time

    def test_a_call_is_charged_what_it_cost(self, rates: RateStore) -> None:
        terms = a_limit(10, HOUR)
        mine = booked(rates.reserve(terms, 5, 0))
        assert rates.settle(terms, 5, mine.slot, mine.edition, 2)
        assert rates.usage(terms).rates[0].used == 2
        mine = booked(rates.reserve(terms, 2, 0))
        assert rates.settle(terms, 2, mine.slot, mine.edition, 8)
        assert rates.usage(terms).rates[0].used == 10
        assert isinstance(rates.reserve(terms, 1, 0), Refused)
        assert not rates.settle(terms, 2, mine.slot, mine.edition, 2)

    # Stopping

    def test_a_pushback_delays_every_call_and_is_never_shortened(self, rates: RateStore) -> None:
        terms = a_limit(2, HOUR)
        for _ in range(2):
            booked(rates.reserve(terms, 1, 0))
        mine = booked(rates.reserve(terms, 1, LONG))
        stop = rates.penalize(terms, Pushback(30 * MINUTE), LONG)
        assert 25 * MINUTE < stop.wait <= 30 * MINUTE
        assert rates.penalize(terms, Pushback(MINUTE), LONG).wait > 25 * MINUTE
        assert 25 * MINUTE < rates.usage(terms).paused <= 30 * MINUTE
        again = booked(rates.resume(terms, 1, mine.slot, mine.edition, LONG))
        assert abs(again.time - mine.time - 30 * MINUTE) <= 10 * SECOND
        assert again.total_pause > mine.total_pause

    def test_a_pushback_until_a_time_and_its_cap(self, rates: RateStore) -> None:
        terms = a_limit(2, HOUR)
        now = rates.usage(terms).time
        stop = rates.penalize(terms, Pushback(now + 20 * MINUTE, absolute=True), LONG)
        assert 15 * MINUTE < stop.wait <= 20 * MINUTE
        assert isinstance(rates.reserve(terms, 1, MINUTE), Refused)
        other = a_limit(2, HOUR, "other")
        assert rates.penalize(other, Pushback(LONG), HOUR).wait <= HOUR
        past = a_limit(2, HOUR, "past")
        assert rates.penalize(past, Pushback(5, absolute=True), HOUR).wait == 0
        assert booked(rates.reserve(past, 1, 0)).wait < ROUNDED

    def test_a_pause_replaces_the_one_before_it(self, rates: RateStore) -> None:
        terms = a_limit(2, HOUR)
        rates.pause(terms, 30 * MINUTE)
        rates.pause(terms, 10 * MINUTE)
        assert 5 * MINUTE < rates.usage(terms).paused <= 10 * MINUTE
        assert isinstance(rates.reserve(terms, 1, 0), Refused)
        rates.pause(terms, 0)
        assert rates.usage(terms).paused == 0
        assert booked(rates.reserve(terms, 1, 0)).wait < ROUNDED

    def test_an_adaptive_limit_falls_after_a_pushback_and_not_below_its_floor(self, rates: RateStore) -> None:
        terms = a_limit(10, HOUR)._replace(min_share=400_000)
        first = rates.penalize(terms, Pushback(0), HOUR)
        assert 400_000 <= first.share < 1_000_000
        assert rates.usage(terms).share == first.share
        rates.adjust(terms, 500_000)
        use = rates.usage(terms)
        assert (use.share, use.rates[0].limit) == (500_000, 5)
        assert [isinstance(rates.reserve(terms, 1, 0), Booked) for _ in range(6)] == [True] * 5 + [False]

    # Looking

    def test_reading_the_use_changes_nothing(self, rates: RateStore) -> None:
        terms = a_limit(3, HOUR)
        assert [tuple(rate) for rate in rates.usage(terms).rates] == [(3, 0, 0)]
        assert rates.names() == []
        for cost in (2, 1, 1):
            booked(rates.reserve(terms, cost, LONG))
        first, second = rates.usage(terms), rates.usage(terms)
        assert [tuple(rate) for rate in first.rates] == [(3, 3, 1)]
        assert (first.rates, first.free, first.refused) == (second.rates, second.free, second.refused)
        assert second.next > 0
        assert 0 < second.tail <= HOUR + 2 * terms.margin
        assert second.time >= first.time

    def test_names_and_terms_of_used_limiters_can_be_read(self, rates: RateStore) -> None:
        older, newer = a_limit(3, HOUR, "older"), a_limit(5, MINUTE, "newer")
        booked(rates.reserve(older, 1, 0))
        since = rates.usage(older).time
        eventually(lambda: rates.usage(older).time > since + 2 * ROUNDED)
        booked(rates.reserve(newer, 1, 0))
        assert set(rates.names()) == {"older", "newer"}
        assert len(rates.names(1)) == 1
        found = rates.terms(["newer", "unused", "older"])
        assert {name: terms.rates for name, terms in found.items()} == {"older": older.rates, "newer": newer.rates}

    def test_tenants_are_named_and_counted_beside_their_limiter_and_hide_no_other(self, rates: RateStore) -> None:
        names = ["alone", *(f"ü/%:tenant:{tenant}" for tenant in ("", "b", "c:tenant:d")), "Ü/%:tenant:b", "shared"]
        for name in names:
            booked(rates.reserve(a_limit(3, HOUR, name), 1, 0))
            since = rates.usage(a_limit(3, HOUR, name)).time
            eventually(lambda since=since: rates.usage(a_limit(3, HOUR, "unused")).time > since + 2 * ROUNDED)
        booked(rates.reserve(a_limit(3, HOUR, "shared:tenant:x"), 1, 0))
        assert rates.names(3) == ["shared", "Ü/%", "ü/%"]  # its common limit was never used
        assert rates.names(4)[-1] == "alone"
        assert rates.names(2, of="ü/%") == names[3:1:-1]
        assert rates.names(of="ü/%") == names[3:0:-1]
        assert rates.names(of="alone") == rates.names(of="ü") == []
        assert rates.count_tenants(["alone", "shared", "ü/%", "unused"]) == {"shared": 1, "ü/%": 3}
        assert rates.count_tenants([]) == {}

    # Resetting

    def test_a_reset_forgets_use_bookings_and_pauses(self, rates: RateStore) -> None:
        terms = a_limit(1, HOUR)
        booked(rates.reserve(terms, 1, 0))
        mine = booked(rates.reserve(terms, 1, LONG))
        rates.penalize(terms, Pushback(HOUR), HOUR)
        rates.reset(terms)
        assert rates.usage(terms).paused == 0
        assert not rates.cancel(terms, 1, mine.slot, mine.edition)
        again = booked(rates.resume(terms, 1, mine.slot, mine.edition, 0))  # a caller that waited books again
        assert again.wait < ROUNDED
        assert again.edition != mine.edition
        assert isinstance(rates.reserve(terms, 1, 0), Refused)

    # Other terms

    def test_each_caller_is_held_to_his_own_terms(self, rates: RateStore) -> None:
        """All of them count what the others have booked."""
        lower, greater = a_limit(2, HOUR), a_limit(4, HOUR)
        for _ in range(2):
            booked(rates.reserve(lower, 1, 0))
        assert isinstance(rates.reserve(lower, 1, 0), Refused)
        for _ in range(2):
            booked(rates.reserve(greater, 1, 0))
        assert isinstance(rates.reserve(greater, 1, 0), Refused)
        assert isinstance(rates.reserve(lower, 1, 0), Refused)
        assert rates.terms(["api"])["api"].rates == lower.rates
        assert rates.usage(greater).rates[0].used == 4

    @pytest.mark.parametrize("how", ["terms", "share"])
    def test_after_a_raise_nobody_waits_for_what_was_booked_under_the_lower_limit(
        self, rates: RateStore, how: str
    ) -> None:
        """What was used still counts; who waits books again on asking, also beside a process with the lower limit."""
        lower, greater = a_limit(1 if how == "terms" else 5, HOUR), a_limit(5, HOUR)
        if how == "share":
            rates.adjust(lower, 200_000)
        booked(rates.reserve(lower, 1, 0))
        waiting = [booked(rates.reserve(lower, 1, LONG)) for _ in range(3)]
        assert waiting[0].wait > HOUR
        if how == "share":
            rates.adjust(lower, 1_000_000)
        assert booked(rates.reserve(greater, 1, 0)).wait < ROUNDED
        assert not rates.cancel(greater, 1, waiting[2].slot, waiting[2].edition)
        assert booked(rates.resume(greater, 1, waiting[0].slot, waiting[0].edition, 0)).wait < ROUNDED
        stray = rates.reserve(lower, 1, LONG)
        assert booked(rates.reserve(greater, 1, 0)).wait < ROUNDED
        if how == "terms":
            assert booked(stray).wait > HOUR
            assert booked(rates.reserve(greater, 1, 0)).wait < ROUNDED
        assert isinstance(rates.reserve(greater, 1, 0), Refused)
        assert rates.usage(greater).rates[0].used == 5


def a_limit(limit: int, window: int, name: str = "api", *, margin: int = SECOND) -> Terms:
    """Return the terms of a limiter of ``limit`` in ``window`` microseconds."""
    return Terms(name, (Rate(limit, window, margin),), horizon=LONG)


def booked(answer: Booked | Refused) -> Booked:
    """Return ``answer``. Fail unless it is a slot."""
    assert isinstance(answer, Booked), answer
    return answer


def assert_within(answers: Sequence[Booked], limit: int, window: int) -> None:
    """Fail if a window of ``window`` microseconds contains more than ``limit`` of the slots."""
    times = sorted(one.time for one in answers)
    for earlier, later in zip(times, times[limit:], strict=False):
        assert later - earlier >= window - ROUNDED, (earlier, later)
