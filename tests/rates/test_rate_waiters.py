"""Two hundred that wait: what it costs, in which order they go, and what they learn asleep."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest
import redis

from django_tasklock import RateLimiter, signals
from django_tasklock.backends.contract.rates import Booked
from django_tasklock.backends.redis.rates import RedisRates, body_of
from django_tasklock.rates.limiter_view import MAX_LIMITERS, view_of
from django_tasklock.rates.reservation import Reservation
from django_tasklock.rates.server_clock import ServerClock
from django_tasklock.rates.slot_wait import SlotWait
from django_tasklock.rates.slots import Slot, SlotPool
from tests.support.proxy import Proxy, anything
from tests.support.public import Received
from tests.support.rate_callers import at_once, callers, most_within
from tests.support.stores import eventually
from tests.support.workers import Crew, Trips

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = pytest.mark.redis


@pytest.fixture
def crew() -> Iterator[Crew]:
    crew = Crew()
    yield crew
    crew.dismiss()


def test_exactly_the_limit_in_each_window_and_one_question_each(crew, name, store):
    """Four processes with fifty threads each; who waits no longer than a second never asks again."""
    for verb in ("reserve", "resume", "exchange"):
        store.script_load(body_of(verb))
    with Trips(store) as trips:
        workers = callers(crew, 4)
        for worker in workers:
            worker.start(f"wait({name!r}, ['70/0.1s'], 50, margin=0.3)")
        made = sorted(one for worker in workers for one in worker.done())
    again = [question for *_, questions in made for question in questions]
    assert trips.number - len(again) == len(made) == 200
    assert all(late > 0.3 or asleep > 1 for late, asleep in again)  # a machine that is busy makes late
    assert most_within(sorted((called, 1) for _, _, called, _ in made), 0.1) <= 70
    turns = [turn for _, turn, _, _ in made]
    if not again:  # to the microsecond: at once, or a window and a margin after the one seventy reservations before
        expected = [0] * 70
        for arrived, *_ in made:  # reservations are sixteen microseconds apart
            expected.append(max(arrived - arrived % 16, expected[-1] + 16, expected[-70] + 400_000))
        assert turns == expected[70:]
    assert turns == sorted(turns)


def test_arrival_decides(name):
    """One after the other, on one connection: no later one gets an earlier reservation."""
    limiter = RateLimiter(name, "30/0.1s", margin=0.5)
    reservations = [limiter.reserve() for _ in range(90)]
    times = [reservation.time for reservation in reservations]
    assert times == sorted(times)
    order = []

    async def wait(number: int) -> None:
        waits = reservations[number].wait > 0  # on a busy machine more than the first thirty are due
        await reservations[number].ause()
        order.append((number, waits, time.monotonic()))

    async def play() -> None:
        await asyncio.gather(*(wait(number) for number in reversed(range(90))))

    with Received(signals.rate_late) as late:
        asyncio.run(play())
    groups = [number // 30 for number, waits, _ in order if waits]
    assert groups == sorted(groups) or late
    assert most_within([(at, 1) for *_, at in order], 0.1) <= 30


@pytest.fixture
def known(proxy: Proxy, name: str, store: redis.Redis) -> Proxy:
    """A proxy before a server that knows the scripts."""
    for verb in ("reserve", "resume", "cancel", "settle", "penalize", "usage", "reset"):
        store.script_load(body_of(verb))
    return proxy


def test_one_round_trip_for_each_verb(known, name):
    limiter = RateLimiter(name, "5/s, 100/h", margin=5)

    def trips(act) -> int:
        with known.recorded() as sent:
            answer = act()
        assert {request[0] for request in sent} == {b"EVALSHA"}
        nonlocal last
        last = answer
        return len(sent)

    last = None
    assert trips(limiter.try_acquire) == 1
    assert trips(limiter.try_acquire) == 1
    assert trips(lambda: limiter.acquire(cost=3)) == 1
    assert trips(lambda reservation=last: reservation.settle(2)) == 1
    assert trips(limiter.reserve) == 1
    assert trips(lambda reservation=last: reservation.cancel()) == 1
    assert trips(limiter.usage) == 1
    assert trips(lambda: limiter.penalize(0.001)) == 1
    assert trips(limiter.reset) == 1


def test_a_long_sleep_is_confirmed_once_for_all_in_the_process(known, name):
    """After more than a second asleep one asks whether the limiter was stopped; the others take its word."""
    limiter = RateLimiter(name, "40/0.6s", margin=0.6)

    async def play() -> None:
        await asyncio.gather(*(limiter.aacquire() for _ in range(80)))

    with known.recorded() as sent:
        asyncio.run(play())
    assert 80 < len(sent) <= 80 + 10


def test_threads_of_one_process_share_the_answer_to_one_request(known, name, monkeypatch):
    """From a server far away, too: while the first waits for its answer the others wait for the first."""
    monkeypatch.setattr("django_tasklock.rates.slot_wait.CONFIRM_AFTER", 0.1)
    limiter = RateLimiter(name, "40/0.1s", margin=0.6)
    reservations = [limiter.reserve() for _ in range(80)]
    known.fault(anything, times=-1, delay=0.1)
    with known.recorded() as sent:
        for thread in at_once(Reservation.use, *((reservation,) for reservation in reservations[40:])):
            thread.join(60)
    assert 1 <= len(sent) <= 10


def test_a_caller_that_wakes_late_takes_the_next_slot_of_its_process(monkeypatch):
    """And keeps its rank; who comes last of them has the one that was missed, and asks for another."""
    pool, now = SlotPool(), 2.2
    monkeypatch.setattr("django_tasklock.rates.slots.monotonic", lambda: now)
    slots = [Slot(Booked(turn, turn * 1_000_000, 1, 0, turn), 0.0, 0.0) for turn in (1, 2, 3, 4)]
    for slot in reversed(slots):
        pool.put(slot)

    def take() -> int:
        return pool.take(ServerClock(), margin=500_000).booked.slot

    assert [take(), take()] == [2, 1]
    assert take() == 3  # to come: it sleeps until then
    pool.put(slots[2])
    now = 3.1
    assert take() == 3
    assert pool.take_own_or_last(slots[2]) == slots[3]  # its own is somebody else's
    assert pool.take_own_or_last(slots[2]) is None


def test_who_sleeps_finds_its_slot_whatever_other_limiters_were_used_meanwhile(name):
    """The process keeps in mind what it knows of so many limiters only."""
    limiter = RateLimiter(name, "1/0.5s")
    limiter.acquire()
    reservation = limiter.reserve()
    slot = reservation.slot
    assert not slot.booked.must_resume
    reservation.slot_wait.put_in_pool(slot)
    for number in range(MAX_LIMITERS + 1):
        view_of(f"{name}:{number}")
    assert reservation.slot_wait.take_from_pool(slot) == slot
    reservation.cancel()


def test_who_wakes_while_its_slot_is_exchanged_gets_that_and_books_no_other(name, monkeypatch):
    """What the first has missed it exchanges together with what the other has missed, who wakes before the answer."""
    asked, exchanging, answered = [], threading.Event(), threading.Event()
    exchange = RedisRates.exchange

    def answer_later(*args):
        answers = exchange(*args)
        exchanging.set()
        assert answered.wait(30)
        return answers

    monkeypatch.setattr(RedisRates, "exchange", answer_later)
    monkeypatch.setattr(Reservation, "_resume", lambda self, ask=Reservation._resume: (asked.append(self), ask(self)))
    monkeypatch.setattr(SlotWait, "resume_lock_timeout", 30.0)
    limiter = RateLimiter(name, "1/0.2s", margin=0.1)
    limiter.reserve()  # used, and never too late for that
    first, second = reservations = [limiter.reserve() for _ in range(2)]
    view = first.stored.view
    for reservation in reservations:
        reservation.slot_wait.put_in_pool(reservation.slot)
    eventually(lambda: second.late > 0.15)
    first.slot = first.slot_wait.take_from_pool(first.slot)
    threads = at_once(Reservation.use, (first,))
    assert exchanging.wait(30)
    second.slot = second.slot_wait.take_from_pool(second.slot)
    request_lock = view.request_lock
    monkeypatch.setattr(view, "request_lock", lambda seconds: (answered.set(), request_lock(seconds))[1])
    threads += at_once(Reservation.use, (second,))
    for thread in threads:
        thread.join(60)
    assert [reservation.state for reservation in reservations] == ["used"] * 2
    assert not asked
    assert len(view.slot_pool((first.stored, 1))) == 0
    assert limiter.usage().windows[0].ahead == 0


def test_a_reservation_that_was_missed_is_exchanged_and_its_caller_goes_with_the_next(name):
    """One of three sleeps for too long; all go, in the order in which they came."""
    limiter = RateLimiter(name, "1/0.2s", margin=0.1)
    limiter.acquire()
    reservations = [limiter.reserve() for _ in range(3)]
    for reservation in reservations:
        reservation.slot_wait.put_in_pool(reservation.slot)
    eventually(lambda: reservations[0].late > 0.15)
    for reservation in reservations:
        reservation.slot = reservation.slot_wait.take_from_pool(reservation.slot)
    for thread in at_once(Reservation.use, *((reservation,) for reservation in reservations)):
        thread.join(60)
    assert [reservation.state for reservation in reservations] == ["used"] * 3
    assert limiter.usage().windows[0].ahead == 0


def test_a_lost_reply_costs_a_reservation_and_never_gives_one_too_many(known, name):
    limiter = RateLimiter(name, "5/h")
    known.lose_reply()
    assert limiter.try_acquire()
    assert limiter.usage().used == 2
    reservation = limiter.try_acquire()
    known.lose_reply()
    assert not reservation.cancel()  # not known whether: never sent twice
    assert limiter.usage().used == 2


def test_keys_expire(name, store):
    """Nothing is left of a limiter that is not used; of one with a horizon nothing before its last reservation."""
    limiter = RateLimiter(name, "2/0.5s")
    while not limiter.reserve().slot.booked.must_resume:  # until one stands in the line
        pass
    keys = list(store.scan_iter(f"*{name}*"))
    assert len(keys) == 3  # numbers, bookings, the line
    assert all(1000 < store.pttl(key) < 5000 for key in keys)


def test_a_key_that_was_deleted_by_hand(name, store):
    limiter = RateLimiter(name, "2/h")
    assert [bool(limiter.try_acquire()) for _ in range(3)] == [True, True, False]
    store.delete(f"task_lock#rate:3600000000:{name}")
    assert limiter.try_acquire()
    store.delete(f"task_lock#rate:meta:{name}")
    assert limiter.try_acquire()
    assert limiter.usage().windows


def test_a_sleeping_caller_waits_for_the_end_of_a_pause_by_another_process(crew, name):
    """It asks on waking: after more than a second usually, here always, or it would have to sleep for that long."""
    limiter = RateLimiter(name, "1/s")
    [worker] = callers(crew, 1)
    worker.do("from django_tasklock.rates import slot_wait; slot_wait.CONFIRM_AFTER = 0.001")
    limiter.acquire()
    worker.do(f"reserved = RateLimiter({name!r}, '1/s').reserve(); None")
    worker.start("reserved.use(); clock()")
    stopped = time.clock_gettime(time.CLOCK_MONOTONIC)
    limiter.penalize(1)
    assert worker.done() - stopped > 1
