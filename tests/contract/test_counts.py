"""What a store counts with its verbs: the same in every store that counts."""

from __future__ import annotations

import threading
import time

import pytest

from django_tasklock import ConcurrencyLimiter, RateLimiter, TaskLock, backends
from django_tasklock.backends.contract.locks import LockStore
from django_tasklock.backends.contract.metrics import Count, limiter_kind
from django_tasklock.exceptions import TaskLockAcquireError, TaskLockError
from django_tasklock.types import AcquireRequest, Busy, Grant, Released
from tests.support.stores import BEYOND, LISTING, WAKING, an_ask, clear, eventually, granted, make, stores

KIND = "video:{id}"
SHORT = 120  # ms: a lease that is to lapse


@pytest.fixture(params=stores(*LISTING, *BEYOND, slow="quorum-3"))
def backend(request) -> LockStore:
    """A backend with an empty store."""
    clear(request.param)
    backend = make(request.param)
    yield backend
    backend.close_idle()
    backend.close()


polling = pytest.mark.parametrize("backend", stores("database"), indirect=True)
waking = pytest.mark.parametrize("backend", stores(*WAKING, *BEYOND, slow="quorum-3"), indirect=True)


def ask(name: str, kind: str | None = KIND, on_busy: str = "skip", **terms: int) -> AcquireRequest:
    """A request that is counted."""
    return an_ask(name, **terms)._replace(kind=kind, on_busy=on_busy)


def numbers(backend: LockStore, kind: str = KIND) -> dict[str, int]:
    """What was counted of a kind, all buckets of a histogram together."""
    found: dict[str, int] = {}
    for (event, counted), count in backend.metrics.totals().items():
        name = event if event.startswith("conflict") else event.partition(":")[0]
        if counted == kind and count.number:
            found[name] = found.get(name, 0) + count.number
    return found


def lapse(backend: LockStore, name: str) -> None:
    """Wait until nobody holds ``name``."""
    eventually(lambda: backend.get(name) is None)


class TestLocks:
    def test_what_was_acquired_and_released(self, backend):
        for name in ("video:1", "video:2"):
            mine = ask(name)
            granted(backend.acquire(mine))
            assert backend.release(name, mine.token) is Released.RELEASED
        granted(backend.acquire(ask("video:3")))
        assert numbers(backend) == {"acquired": 3, "released": 2}

    def test_the_time_that_a_lock_was_held(self, backend):
        mine = ask("video:1")
        began = time.monotonic()
        granted(backend.acquire(mine))
        time.sleep(0.03)
        backend.release("video:1", mine.token)
        most = (time.monotonic() - began) * 1000 + 5
        [(event, count)] = [
            (event, count) for (event, _), count in backend.metrics.totals().items() if event.startswith("released")
        ]
        assert int(event.removeprefix("released:")) >= 2
        assert count.number == 1
        assert 25 <= count.amount <= most

    def test_a_hold_of_more_than_a_second(self, backend):
        mine = ask("video:1")
        granted(backend.acquire(mine))
        time.sleep(1.02)
        backend.release("video:1", mine.token)
        [count] = [
            count for (event, _), count in backend.metrics.totals().items() if event in ("released:5", "released:6")
        ]
        assert (count.number, count.amount >= 1000) == (1, True)
        assert [hold.how for hold in backend.metrics.holds("video:1", 10)] == ["released"]

    def test_a_lock_that_is_held_while_somebody_reads(self, backend):
        mine = ask("video:1")
        granted(backend.acquire(mine))
        for _ in range(2):
            assert numbers(backend) == {"acquired": 1}
        granted(backend.acquire(ask("video:2", ttl=SHORT)))
        assert numbers(backend) == {"acquired": 2}
        backend.release("video:1", mine.token)
        lapse(backend, "video:2")
        backend.prune(10)
        assert numbers(backend) == {"acquired": 2, "released": 1, "expired": 1}

    def test_asking_again_with_the_same_token_counts_once(self, backend):
        mine = ask("video:1")
        for _ in range(3):
            granted(backend.acquire(mine))
        assert numbers(backend) == {"acquired": 1}

    def test_a_release_that_finds_nothing_of_its_own_counts_nothing(self, backend):
        mine = ask("video:1")
        granted(backend.acquire(mine))
        backend.release("video:1", "another")
        backend.release("video:2", "another")
        assert numbers(backend) == {"acquired": 1}

    def test_kinds_are_told_apart(self, backend):
        granted(backend.acquire(ask("a", "one")))
        granted(backend.acquire(ask("b", "")))
        granted(backend.acquire(ask("c", "报告:{day}")))
        assert [numbers(backend, kind) for kind in ("one", "", "报告:{day}")] == [{"acquired": 1}] * 3

    @pytest.mark.parametrize(
        "begin",
        [
            pytest.param("x" * 100, id="plain"),
            pytest.param("报" * 100, id="beyond ASCII"),
            pytest.param("报告" * 25, id="beyond ASCII, too long for a column"),
            pytest.param("x" * 90 + "报", id="cut in an escape"),
        ],
    )
    def test_long_kinds_are_told_apart(self, backend, begin, monkeypatch):
        """A column of the database has a hundred characters, of which one beyond ASCII takes six and more."""
        monkeypatch.setattr(backends, "current", backend)
        for end in ("{day}", "{week}", "{week}"):
            with TaskLock("a", kind=begin + end):
                pass
        found: dict[str, int] = {}
        for (event, kind), count in backend.metrics.totals().items():
            if event == "acquired":
                found[kind] = found.get(kind, 0) + count.number
        assert sorted(found.values()) == [1, 2]
        assert all(kind[:10] == begin[:10] and kind.isprintable() and len(kind) <= 100 for kind in found)
        assert all("\\" not in kind for kind in found)  # no half escape

    def test_what_has_no_kind_is_not_counted(self, backend):
        mine = an_ask("video:1")
        granted(backend.acquire(mine))
        backend.acquire(an_ask("video:1")._replace(on_busy="skip"))
        backend.release("video:1", mine.token)
        granted(backend.acquire(an_ask("video:2", ttl=SHORT)))
        lapse(backend, "video:2")
        granted(backend.acquire(an_ask("video:2")))
        backend.remove("video:2")
        assert not backend.metrics.totals()

    def test_conflicts_by_what_is_done(self, backend):
        granted(backend.acquire(ask("video:1")))
        for word in ("skip", "skip", "retry", ""):
            assert isinstance(backend.acquire(ask("video:1", on_busy=word)), Busy)
        assert numbers(backend) == {"acquired": 1, "conflict:skip": 2, "conflict:retry": 1}

    def test_one_object_in_a_block_and_without(self, backend, monkeypatch):
        monkeypatch.setattr(backends, "current", backend)
        granted(backend.acquire(an_ask("video:1")))
        lock = TaskLock("video:1", kind=KIND)
        with pytest.raises(TaskLockAcquireError), lock:
            raise AssertionError("it is busy")
        assert not lock.acquire()
        assert numbers(backend) == {"conflict:raise": 1, "conflict:skip": 1}

    def test_an_acquisition_that_supersedes_a_hold_counts_as_transferred(self, backend):
        first, second = ask("video:1"), ask("video:1")
        granted(backend.acquire(first))
        granted(backend.acquire(second._replace(supersedes=first.token)))
        backend.release("video:1", second.token)
        assert numbers(backend) == {"acquired": 1, "transferred": 1, "released": 1}

    def test_what_is_taken_away_is_forced(self, backend):
        mine = ask("video:1")
        granted(backend.acquire(mine))
        assert backend.remove("video:1", mine.token) is not None
        assert backend.release("video:1", mine.token) is not Released.RELEASED
        assert numbers(backend) == {"acquired": 1, "forced": 1}

    def test_an_extension_keeps_the_kind(self, backend):
        mine = ask("video:1")
        granted(backend.acquire(mine))
        assert backend.extend("video:1", mine.token, SHORT, SHORT)
        lapse(backend, "video:1")
        backend.prune(10)
        assert numbers(backend) == {"acquired": 1, "expired": 1}


class TestExpiry:
    """Counted once, by whoever finds it, in the kind that the lock had."""

    def test_found_by_the_next_who_takes_it(self, backend):
        granted(backend.acquire(ask("video:1", ttl=SHORT)))
        lapse(backend, "video:1")
        granted(backend.acquire(ask("video:1", "another")))
        assert numbers(backend) == {"acquired": 1, "expired": 1}
        assert numbers(backend, "another") == {"acquired": 1}

    def test_found_by_a_sweep(self, backend):
        for number in range(3):
            granted(backend.acquire(ask(f"video:{number}", ttl=SHORT)))
        for number in range(3):
            lapse(backend, f"video:{number}")
        assert backend.prune(10).removed == 3
        assert backend.prune(10).removed == 0
        granted(backend.acquire(ask("video:1")))
        assert numbers(backend) == {"acquired": 4, "expired": 3}

    def test_found_by_who_takes_it_away(self, backend):
        granted(backend.acquire(ask("video:1", ttl=SHORT)))
        lapse(backend, "video:1")
        assert backend.remove("video:1") is None
        backend.prune(10)
        assert numbers(backend) == {"acquired": 1, "expired": 1}

    def test_a_listing_that_shows_it_counts_nothing(self, backend):
        granted(backend.acquire(ask("video:1", ttl=SHORT)))
        lapse(backend, "video:1")
        assert len(backend.records(expired=True)) == 1
        backend.records()
        assert numbers(backend) == {"acquired": 1}

    def test_renewed_leases_keep_their_kind(self, backend):
        from django_tasklock.types import Renewal

        mine = ask("video:1")
        granted(backend.acquire(mine))
        assert backend.renew([Renewal("video:1", mine.token, SHORT)])[0]
        lapse(backend, "video:1")
        backend.prune(10)
        assert numbers(backend) == {"acquired": 1, "expired": 1}


class TestWaiting:
    @waking
    def test_a_handover_counts_the_wait(self, backend):
        first, second = ask("video:1"), ask("video:1", on_busy="timeout")
        granted(backend.acquire(first))
        timer = threading.Timer(0.15, backend.release, ("video:1", first.token))
        waiter = backend.waiter(second)
        try:
            assert isinstance(waiter.acquire(), Busy)
            timer.start()
            assert isinstance(waiter.wait(5.0), Grant)
        finally:
            waiter.leave()
            timer.join()
        assert numbers(backend) == {"acquired": 1, "waited": 1, "released": 1}
        found = backend.metrics.totals().items()
        [waited] = [count for (event, _), count in found if event.startswith("waited")]
        assert 100 <= waited.amount <= 5000

    @polling
    def test_the_wait_of_a_polling_caller_counts_from_its_first_request(self, backend):
        first, second = ask("video:1"), ask("video:1")
        granted(backend.acquire(first))
        backend.release("video:1", first.token)
        granted(backend.acquire(second._replace(waited=70)))
        found = backend.metrics.totals()
        assert found["waited:2", KIND] == Count(1, 70)

    def test_a_failed_wait_is_counted_once(self, backend):
        granted(backend.acquire(ask("video:1")))
        waiter = backend.waiter(ask("video:1", on_busy="timeout"))
        try:
            for _ in range(3):
                assert isinstance(waiter.acquire(), Busy)
            waiter.mark_last_attempt()
            assert isinstance(waiter.acquire(), Busy)
        finally:
            waiter.leave()
        assert numbers(backend) == {"acquired": 1, "conflict:timeout": 1}

    @waking
    def test_a_waiter_that_takes_over_from_the_dead(self, backend):
        granted(backend.acquire(ask("video:1", ttl=1000)))  # longer than to ask five servers, on a busy machine
        waiter = backend.waiter(ask("video:1", "another", on_busy="timeout"))
        try:
            assert isinstance(waiter.acquire(), Busy)

            def mine() -> bool:
                return isinstance(waiter.wait(0.2) or waiter.acquire(), Grant)

            eventually(mine)
        finally:
            waiter.leave()
        assert numbers(backend) == {"acquired": 1, "expired": 1}
        assert numbers(backend, "another") == {"waited": 1}


class TestPermits:
    def test_granted_refused_released(self, backend):
        permits = backend.permits
        first, second = (replace_limit(ask("transcode", "transcode")) for _ in range(2))
        granted(permits.acquire(first))
        granted(permits.acquire(first))
        assert isinstance(permits.acquire(second), Busy)
        permits.release("transcode", first.token)
        assert numbers(backend, "transcode") == {"limit.granted": 1, "limit.refused": 1, "limit.released": 1}

    def test_taken_away_and_expired(self, backend):
        permits = backend.permits
        first = replace_limit(ask("transcode", "transcode"))
        granted(permits.acquire(first))
        permits.remove("transcode", first.token)
        granted(permits.acquire(replace_limit(ask("transcode", "transcode", ttl=SHORT))))
        eventually(lambda: not permits.members("transcode"))
        granted(permits.acquire(replace_limit(ask("transcode", "transcode"))))
        assert numbers(backend, "transcode") == {"limit.granted": 3, "limit.forced": 1, "limit.expired": 1}


@pytest.mark.parametrize("backend", stores("redis", "database", "memory"), indirect=True)
@pytest.mark.parametrize("name", ["n" * 101, "n" * 200, 'a|"b"'])
def test_a_limiter_of_rates_and_one_of_concurrency_are_counted_by_one_name(backend, name, monkeypatch):
    monkeypatch.setattr(backends, "current", backend)
    with ConcurrencyLimiter(name, 1), RateLimiter(name, "1/h"):
        pass
    assert not RateLimiter(name, "1/h").try_acquire()
    kinds = {kind for _, kind in backend.metrics.totals()}
    assert kinds == {limiter_kind(name)}
    assert len(kinds.pop()) <= 100


def replace_limit(request: AcquireRequest, limit: int = 1) -> AcquireRequest:
    """A request for a permit."""
    return request._replace(limit=limit)


class TestReading:
    def test_hours_add_up_to_the_totals(self, backend):
        granted(backend.acquire(ask("video:1")))
        hours = backend.metrics.hours(24)
        assert len(hours) in (1, 2)
        assert hours[-1].at % 3600 == 0
        assert abs(hours[-1].at - time.time()) < 3700
        assert sum(hour.counted.get(("acquired", KIND), Count()).number for hour in hours) == 1

    def test_what_is_counted_by_itself(self, backend):
        backend.metrics.add("lost", KIND)
        backend.metrics.add("lost", KIND)
        assert numbers(backend) == {"lost": 2}

    def test_a_flush_begins_at_zero(self, backend, request):
        granted(backend.acquire(ask("video:1")))
        clear(request.node.callspec.params["backend"])
        assert not backend.metrics.totals()
        granted(backend.acquire(ask("video:1")))
        assert numbers(backend) == {"acquired": 1}

    def test_the_last_holds_of_a_name_that_did_not_end_well(self, backend):
        mine = ask("video:1")._replace(holder='{"host": "web1", "pid": 7}')
        granted(backend.acquire(mine))
        backend.remove("video:1", mine.token)
        short = ask("video:1")
        granted(backend.acquire(short))
        backend.release("video:1", short.token)  # at once: not one of those that are kept
        [hold] = backend.metrics.holds("video:1", 10)
        assert (hold.how, hold.kind, hold.holder.host) == ("forced", KIND, "web1")
        assert hold.at <= hold.ended_at

    def test_a_hold_that_expired_is_noted(self, backend):
        granted(backend.acquire(ask("video:1", ttl=SHORT)))
        lapse(backend, "video:1")
        backend.prune(10)
        assert [hold.how for hold in backend.metrics.holds("video:1", 10)] == ["expired"]

    def test_so_many_are_kept(self, backend, settings, request):
        settings.TASKLOCK = {**settings.TASKLOCK, "HISTORY": 3}
        backend = make(request.node.callspec.params["backend"], HISTORY=3)
        for _ in range(5):
            mine = ask("video:1")
            granted(backend.acquire(mine))
            backend.remove("video:1", mine.token)
        assert len(backend.metrics.holds("video:1", 10)) == 3
        assert len(backend.metrics.holds("video:1", 2)) == 2


class TestCaches:
    @pytest.mark.redis
    def test_a_cache_says_that_it_counts_nothing(self):
        backend = make("cache-django-redis")
        with pytest.raises(TaskLockError, match="counts nothing"):
            _ = backend.metrics
