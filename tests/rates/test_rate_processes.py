"""Rate limits over processes on a real Redis or database, judged by when the callers make their calls."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta

import pytest

from django_tasklock import RateLimiter
from django_tasklock.models import RateRow
from tests.support.public import forked
from tests.support.rate_callers import callers, most_within, times
from tests.support.stores import eventually
from tests.support.workers import Crew, Worker

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = [pytest.mark.redis, pytest.mark.slow]


@pytest.fixture
def crew() -> Iterator[Crew]:
    crew = Crew()
    yield crew
    crew.dismiss()


@pytest.fixture(scope="module")
def staff() -> Iterator[list[Worker]]:
    """Eight that know ``call``, for all tests: most of a test's time would be that of their beginning."""
    crew = Crew()
    yield callers(crew, 8)
    crew.dismiss()


class TestExact:
    """Judged where the calls are made. Margins are great, because between being let through and noting the time a
    process of a busy machine may be kept waiting, as it may be before its call."""

    def test_eight_processes(self, staff, name):
        """Source 003, section 6.2: the multi-process test. Some make pauses, some are heavier."""
        for number, worker in enumerate(staff):
            worker.do(f"pause, cost = {number % 2 * 0.02}, {number % 3 + 1}")
        calls = times(staff, f"call({name!r}, ['80/0.2s'], 15, cost=cost, pause=pause, margin=0.2)")
        assert len(calls) == 120
        assert {units for _, units in calls} == {1, 2, 3}
        assert most_within(calls, 0.2) <= 80

    @pytest.mark.parametrize("tokens", [300, 120, 60], ids=["requests", "both", "tokens"])
    def test_two_limits_of_one_call_each_with_its_cost(self, crew, name, tokens):
        """Whichever of them is the strict one: neither has more in any window, and nobody waits for ever."""
        workers = callers(crew, 4)
        for number, worker in enumerate(workers):
            worker.start(f"call_both({name!r}, '20/0.2s', '{tokens}/0.2s', 12, {number}, margin=0.2)")
        calls = sorted(tuple(one) for worker in workers for one in worker.done(60))
        assert len(calls) == 48
        assert most_within([(moment, 1) for moment, _ in calls], 0.2) <= 20
        assert most_within(calls, 0.2) <= tokens

    def test_clients_whose_clocks_differ(self, crew, name):
        """Gold standard 8.40: only the server's clock counts."""
        workers = callers(crew, 4)
        for number, worker in enumerate(workers):
            worker.do(f"true_time = time.time; time.time = lambda: true_time() + {(number - 2) * 600}")
        calls = times(workers, f"call({name!r}, ['20/0.2s'], 15, margin=0.2)")
        assert len(calls) == 60
        assert most_within(calls, 0.2) <= 20

    def test_some_that_are_killed_and_reservations_that_are_cancelled(self, crew, name):
        """In the middle of it all: the others are served, in windows that are never too full."""
        workers = callers(crew, 4)
        doomed, others = workers[:2], workers[2:]
        for worker in doomed:
            worker.start(f"call({name!r}, ['5/0.2s'], 1000, margin=0.2)")
        for worker in others:
            worker.start(f"call({name!r}, ['5/0.2s'], 10, margin=0.2, cancelled=0.5)")
        limiter = RateLimiter(name, "5/0.2s", margin=0.2)
        eventually(lambda: limiter.usage().windows[0].ahead >= 2)
        for worker in doomed:
            worker.kill()
        calls = sorted(tuple(one) for worker in others for one in worker.done())
        assert len(calls) == 20
        assert most_within(calls, 0.2) <= 5


def test_a_waiter_that_is_killed_costs_its_reservation_and_nothing_more(crew, name):
    """To the microsecond: reservations are as far apart as if the three had made their calls."""
    limiter = RateLimiter(name, "5/60s")
    apart = timedelta(seconds=60.12)
    first = [limiter.acquire().time for _ in range(5)]
    doomed = callers(crew, 3)
    for number, worker in enumerate(doomed, 1):
        worker.start(f"RateLimiter({name!r}, '5/60s').acquire()")
        eventually(lambda number=number: limiter.usage().windows[0].ahead == number)
    for worker in doomed:
        worker.kill()
    reservations = [limiter.reserve().time for _ in range(7)]
    assert reservations == [*(at + apart for at in first[3:]), *(at + 2 * apart for at in first)]


def test_the_script_of_the_source(name):
    """Source 003, section 6.2: 120 acquisitions at 100 per window take longer than the window."""
    limiter = RateLimiter(name, (100, 0.5))
    limiter.reset()
    began = time.monotonic()
    for _ in range(120):
        assert limiter.acquire()
    assert 0.5 < time.monotonic() - began < 30
    assert limiter.usage().used <= 100


def test_a_limit_changed_under_load(staff, name):
    """Gold standard 8.40: neither wedged after a burst nor above the greater of the two."""
    workers = staff[:4]
    greater, lower = (f"call({name!r}, ['{limit}/0.2s'], {{}}, margin=0.2)" for limit in (20, 10))
    for worker in workers[:2]:
        worker.start(greater.format(15))
    for worker in workers[2:]:
        worker.start(f"{greater.format(5)} + {lower.format(10)}")
    calls = sorted(tuple(one) for worker in workers for one in worker.done())
    assert len(calls) == 60
    assert most_within(calls, 0.2) <= 20


def test_a_forked_child_shares_the_limit_and_no_connection(name):
    limiter = RateLimiter(name, "3/h")
    assert limiter.try_acquire()
    assert forked(lambda: [bool(limiter.try_acquire()) for _ in range(3)]) == [True, True, False]
    assert not limiter.try_acquire()


@pytest.mark.database
@pytest.mark.django_db(transaction=True)
def test_four_processes_that_share_a_database_and_no_redis(crew):
    """Many of them lose the race for the row now and then; none of their calls is one too many."""
    RateRow.objects.all().delete()
    workers = callers(crew, 4)
    for worker in workers:
        worker.do("from django.test import override_settings; from tests.support.public import setting")
        worker.do("override_settings(TASKLOCK=setting('database')).enable()")
    calls = times(workers, "call('api', ['8/0.2s'], 6, margin=0.4)")
    assert len(calls) == 24
    assert most_within(calls, 0.2) <= 8
    assert RateRow.objects.count() == 1
