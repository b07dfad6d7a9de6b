"""Two hundred that wait: what it costs, in which order they go, and what they learn asleep."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import redis

from django_tasklock import RateLimiter
from django_tasklock.backends.redis.rates import SCRIPTS
from django_tasklock.rates import reservation as rates_reservation
from tests.support.proxy import Proxy
from tests.support.rate_callers import callers, most_within
from tests.support.stores import eventually
from tests.support.workers import Crew, Trips

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = pytest.mark.redis


@pytest.fixture
def crew() -> Iterator[Crew]:
    crew = Crew()
    yield crew
    crew.dismiss()


@pytest.mark.slow
def test_exactly_the_limit_in_each_window_and_one_question_each(crew, name, store):
    """Four processes with fifty threads each; who waits no longer than a second asks once, unless it is late."""
    for script in SCRIPTS.values():
        store.script_load(script.body)
    with Trips(store) as trips:
        workers = callers(crew, 4)
        for worker in workers:
            worker.start(f"wait({name!r}, ['70/0.1s'], 50, margin=0.3)")
        made = sorted(one for worker in workers for one in worker.done())
    asked = sum(questions for *_, questions in made)
    assert trips.number == asked
    assert most_within(sorted((called, 1) for _, _, called, _ in made), 0.1) <= 70
    turns = [turn for _, turn, _, _ in made]
    if asked == 200:  # to the microsecond: at once, or a window and a margin after the one seventy reservations before
        expected = [0] * 70
        for arrived, *_ in made:  # no two reservations are at the same time
            expected.append(max(arrived, expected[-1] + 1, expected[-70] + 400_000))
        assert turns == expected[70:]
    assert turns == sorted(turns)


@pytest.mark.slow
def test_who_waits_for_longer_asks_twice_and_the_order_stays(crew, name, store):
    """Half a second before its turn each asks once more: so no trip but these, and none that asks each window."""
    with Trips(store) as trips:
        workers = callers(crew, 4)
        for worker in workers:
            worker.start(f"wait({name!r}, ['50/0.5s'], 50, margin=0.5)")
        made = sorted(one for worker in workers for one in worker.done())
    calls = sorted((called, 1) for _, _, called, _ in made)
    assert len(calls) == 200
    assert most_within(calls, 0.5) <= 50
    waiting = sum(turn - arrived > 1_000_000 for arrived, turn, *_ in made)
    assert waiting >= 50
    assert 200 + waiting <= trips.number <= 2.2 * 200
    assert [turn for _, turn, *_ in made] == sorted(turn for _, turn, *_ in made)


@pytest.fixture
def known(proxy: Proxy, name: str, store: redis.Redis) -> Proxy:
    """A proxy before a server that knows the scripts."""
    for script in SCRIPTS.values():
        store.script_load(script.body)
    return proxy


def test_a_long_wait_is_confirmed_half_a_second_before_its_turn(known, name, monkeypatch):
    """Once: the answer is the word of the store on its turn. A short one is not, and goes by the first answer."""
    limiter, slept = RateLimiter(name, "1/0.5s", margin=2), []
    nap = rates_reservation.sleep
    monkeypatch.setattr(rates_reservation, "sleep", lambda seconds: slept.append(seconds) or nap(seconds))
    limiter.acquire()
    with known.recorded() as sent:
        reservation = limiter.acquire()
    assert len(sent) == 2
    assert 0 < slept[0] <= 2
    assert 0 < slept[1] <= 0.51
    assert reservation.slot.late <= 2
    limiter = RateLimiter(f"{name}:soon", "1/0.05s", margin=0.9)
    limiter.acquire()
    with known.recorded() as sent:
        limiter.acquire()
    assert len(sent) == 1


def test_a_slot_that_nobody_confirms_goes_to_the_next(name):
    """Who was killed asleep holds up nobody: his turn is that of whoever asks then."""
    limiter = RateLimiter(name, "1/1.2s", margin=0.3)
    limiter.acquire()
    killed = limiter.reserve()
    mine = limiter.reserve()
    eventually(lambda: killed.slot.late > -0.9)
    mine.use()
    assert mine.slot.booked.time - killed.slot.booked.time < 3_000_000


def test_a_lost_reply_costs_a_reservation_and_never_gives_one_too_many(known, name):
    limiter = RateLimiter(name, "5/h")
    known.lose_reply()
    assert limiter.try_acquire()
    assert limiter.usage().used == 2
    reservation = limiter.try_acquire()
    known.lose_reply()
    with known.recorded() as sent:
        assert not reservation.cancel()  # not known whether: never sent twice
    assert len(sent) == 1
    assert limiter.usage().used == 2


def test_keys_expire(name, store):
    """Nothing is left of a limiter that is not used; of one with a horizon nothing before its last reservation."""
    limiter = RateLimiter(name, "2/5s")
    while not limiter.reserve().slot.booked.must_resume:  # until one stands in the line
        pass
    keys = list(store.scan_iter(f"*{name}*"))
    assert len(keys) == 3  # numbers, bookings, the line
    assert all(1000 < store.pttl(key) < 20_000 for key in keys)


def test_a_key_that_was_deleted_by_hand(name, store):
    limiter = RateLimiter(name, "2/h")
    assert [bool(limiter.try_acquire()) for _ in range(3)] == [True, True, False]
    store.delete(f"task_lock#rate:3600000000:{name}")
    assert limiter.try_acquire()
    store.delete(f"task_lock#rate:meta:{name}")
    assert limiter.try_acquire()
    assert limiter.usage().windows


def test_a_sleeping_caller_waits_for_the_end_of_a_pause_by_another_process(crew, name):
    """It asks half a second before its turn, which is a second later then."""
    limiter = RateLimiter(name, "1/1.2s", margin=0.3)
    [worker] = callers(crew, 1)
    limiter.acquire()
    worker.do(f"reserved = RateLimiter({name!r}, '1/1.2s', margin=0.3).reserve(); reserved.wait")
    worker.start("reserved.use(); clock()")
    stopped = time.clock_gettime(time.CLOCK_MONOTONIC)
    limiter.penalize(2)
    assert worker.done() - stopped > 2
