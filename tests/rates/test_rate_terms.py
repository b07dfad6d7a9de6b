"""The terms of a named limiter belong to its store: a process that has others follows them, and stops nobody."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator

import pytest

from django_tasklock import RateLimiter, TaskLockError
from django_tasklock.backends import get_backend
from django_tasklock.backends.memory.rates import MemoryRates
from django_tasklock.backends.memory.store import store as memory
from django_tasklock.rates import booker, slot_wait, terms as limit_terms
from django_tasklock.rates.background import background_work
from django_tasklock.rates.terms import RatesInForce
from django_tasklock.types import monotonic
from tests.support.public import in_store
from tests.support.stores import stores
from tests.support.twins import TWINS, call


@pytest.fixture(params=stores("redis", "database", "memory"), autouse=True)
def store(request, settings) -> Iterator[str]:
    if request.param == "database":
        from django_tasklock.models import RateRow

        RateRow.objects.all().delete()
    yield from in_store(request.param, settings)
    assert background_work.wait()


@pytest.fixture
def at(monkeypatch) -> Callable[[str], None]:
    """From now on we are that process."""
    known: dict[str, RatesInForce] = {}

    def become(name: str) -> None:
        monkeypatch.setattr(booker, "rates_in_force", lambda kept: known.setdefault(name, RatesInForce(kept, name)))

    return become


def fleet(at: Callable[[str], None], *rates: str) -> None:
    """Two processes that have these terms, and call."""
    for name in ("one", "two"):
        at(name)
        RateLimiter("api", *rates).try_acquire()


@TWINS
@pytest.mark.slow
class TestRaised:
    def test_new_calls_do_not_stand_behind_the_backlog(self, way, at):
        at("old")
        waiting = [RateLimiter("api", "10/m").reserve() for _ in range(40)]
        assert waiting[-1].wait > 150
        fleet(at, "1000/m")
        at("two")
        assert call(way, RateLimiter("api", "1000/m"), "reserve").wait < 10

    def test_those_that_wait_go_soon(self, way, at, monkeypatch):
        monkeypatch.setattr(slot_wait, "LONGEST_SLEEP", 0.05)
        at("old")
        waiting = [RateLimiter("api", "10/m").reserve() for _ in range(40)]
        assert waiting[-1].wait > 150
        fleet(at, "1000/m")
        at("old")
        call(way, waiting[-1], "use")
        assert waiting[-1].state == "used"
        assert RateLimiter("api", "10/m").usage().windows[0].limit == 1000


def test_a_reservation_that_does_not_fit_any_more_is_refused(at):
    """It was moved before a deploy that lowered the limit: no window has room for it."""
    at("old")
    token = RateLimiter("api", "100/h").reserve(cost=50).move()
    fleet(at, "10/h")
    at("a third one")
    with pytest.raises(TaskLockError, match="a cost of 50 does not fit into the limit 10/h of 'api'"):
        RateLimiter("api", "10/h").restore(token, 1)
    assert RateLimiter("api", "10/h").usage().windows[0].limit == 10


@TWINS
@pytest.mark.parametrize("store", ["memory"], indirect=True)
def test_a_waiting_process_sends_its_terms_too(way, at, monkeypatch):
    """Else all who wait behind an old backlog would be silent until its end."""
    monkeypatch.setattr(slot_wait, "LONGEST_SLEEP", 0.05)
    monkeypatch.setattr(limit_terms, "VOTE_EVERY_IF_DIFFERENT", 0.0)
    at("old")
    for _ in range(40):
        RateLimiter("api", "10/m").reserve()
    at("new")
    reservation = RateLimiter("api", "1000/m").reserve()
    assert reservation.wait > 150
    memory.skipped += 61.0  # what the old one has said holds no longer
    call(way, reservation, "use")
    assert reservation.state == "used"


@pytest.mark.parametrize("store", ["memory"], indirect=True)
def test_one_of_two_threads_says_them(at, monkeypatch):
    """Both look at the clock before either has noted that it says them."""
    said, both, looks = [], threading.Barrier(2), threading.local()
    kept = get_backend().rates
    vote = kept.vote
    monkeypatch.setattr(kept, "vote", lambda *what: said.append(what) or vote(*what))

    def clock() -> float:
        looks.number = getattr(looks, "number", 0) + 1
        if looks.number <= 2:  # at the second look only one is here, unless both say them
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(30 if looks.number == 1 else 0.5)
        return monotonic()

    monkeypatch.setattr(limit_terms, "monotonic", clock)
    at("one")
    limiters = [RateLimiter("api", "10/m") for _ in range(2)]
    threads = [threading.Thread(target=limiter.reserve) for limiter in limiters]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(said) == 1


@pytest.mark.parametrize("store", ["memory"], indirect=True)
def test_two_threads_that_are_the_first_agree_on_one(monkeypatch):
    """Else each would say the process' terms, and those of one would not take over what those of the other miss."""
    both, kept, found = threading.Barrier(2), get_backend().rates, []

    class Met(RatesInForce):
        def __init__(self, *of):
            both.wait(30)
            super().__init__(*of)

    limit_terms.rates_in_force(MemoryRates({}))  # of another store, which is forgotten
    monkeypatch.setattr(limit_terms, "RatesInForce", Met)
    threads = [threading.Thread(target=lambda: found.append(limit_terms.rates_in_force(kept))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == [limit_terms.rates_in_force(kept)] * 2
    assert found[0].store is kept


@TWINS
@pytest.mark.parametrize("stray", [["1/h"], ["1000/m", "1/h"], ["2/m"]])
class TestStray:
    def test_a_stray_lower_limit_delays_no_call_and_is_logged(self, way, stray, at, caplog):
        fleet(at, "1000/m")
        at("stray")
        limiter = RateLimiter("api", *stray)
        with caplog.at_level(logging.WARNING, "django_tasklock"):
            # They are microseconds apart.
            assert max(call(way, limiter, "reserve").wait for _ in range(5)) < 0.001
        [told] = [one.getMessage() for one in caplog.records if "are in force" in one.getMessage()]
        assert "1000/m (window" in told
        assert ", ".join(stray) + " (window" in told
        at("one")
        assert call(way, RateLimiter("api", "1000/m"), "reserve").wait < 0.001

    def test_terms_of_a_stray_process_that_came_first_are_outvoted(self, way, stray, at):
        """It has the limiter to itself until more processes have other terms."""
        at("stray")
        for _ in range(5):
            call(way, RateLimiter("api", *stray, max_wait=36000), "reserve")
        fleet(at, "1000/m")
        assert call(way, RateLimiter("api", "1000/m"), "reserve").wait < 10


def test_the_lower_limit_holds_for_one_that_has_a_greater(at):
    fleet(at, "4/h")
    at("stray")
    limiter = RateLimiter("api", "1000/m")
    assert [bool(limiter.try_acquire()) for _ in range(3)] == [True, True, False]
    with pytest.raises(TaskLockError, match="a cost of 5 does not fit into the limit 4/h of 'api' that is in force"):
        limiter.reserve(cost=5)


def test_how_long_one_would_wait_is_his_own_affair(at, caplog):
    fleet(at, "4/h")
    at("patient")
    assert RateLimiter("api", "4/h", max_wait=7200).reserve()
    assert "are in force" not in caplog.text


def test_a_book_of_an_earlier_version_has_no_terms_yet(at):
    """Whoever says his first has them; nothing that was booked is forgotten."""
    at("one")
    limiter = RateLimiter("api", "2/h")
    for _ in range(2):
        limiter.store.store.reserve(limiter.terms, 1, 0)
    assert not limiter.try_acquire()


@pytest.mark.parametrize("store", ["memory"], indirect=True)
def test_terms_of_a_version_that_is_not_known(at):
    """Nobody can keep to what he cannot read."""
    at("one")
    RateLimiter("api", "4/h").try_acquire()
    memory.rates["api"].rule = "newest  0 0 4 3600000000 7200000"
    with pytest.raises(TaskLockError, match="cannot be read: they are of another version"):
        RateLimiter("api", "4/h").try_acquire()
