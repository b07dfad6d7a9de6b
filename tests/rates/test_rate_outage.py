"""Rate limits while the store cannot be asked, and after it has lost everything."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from django_tasklock import BackendUnavailable, RateLimiter, RateLimitExceeded, TaskLockError, signals
from django_tasklock.rates import outage as limit_outage
from tests.support.public import Received
from tests.support.rate_callers import at_once, most_within
from tests.support.redis_server import RedisServer, free_port
from tests.support.stores import eventually
from tests.support.twins import TWINS, call

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = pytest.mark.redis


@pytest.fixture
def down(configure) -> None:
    """Nobody answers."""
    configure(LOCATION=f"redis://127.0.0.1:{free_port()}/0")


@pytest.fixture
def clock(monkeypatch) -> Iterator[list[float]]:
    """What the policies take for the time."""
    time = [1000.0]
    monkeypatch.setattr(limit_outage, "monotonic", lambda: time[0])
    return time


@TWINS
class TestPolicies:
    def test_closed_is_the_default(self, down, name, way):
        with Received(signals.rate_unavailable) as met, pytest.raises(BackendUnavailable) as caught:
            call(way, RateLimiter(name, "1/h"), "acquire")
        assert caught.value.name == name
        assert [one["action"] for one in met] == ["closed"]

    def test_open(self, down, name, way, warnings_logged):
        limiter = RateLimiter(name, "1/h", on_unavailable="open")
        reservations = [call(way, limiter, "acquire") for _ in range(3)]
        assert [reservation.booked for reservation in reservations] == [False] * 3
        assert not call(way, reservations[0], "cancel")
        assert "policy: open" in warnings_logged()[0]

    def test_local(self, down, name, way):
        """This process's share of the limit."""
        limiter = RateLimiter(name, "20/h", on_unavailable="local", workers=4)
        assert [bool(call(way, limiter, "try_acquire")) for _ in range(6)] == [True] * 5 + [False]
        with pytest.raises(RateLimitExceeded):
            call(way, limiter, "acquire", 1)

    def test_local_reserves_all_or_none(self, down, name, way):
        limiter = RateLimiter(name, "40/h", on_unavailable="local", workers=4, max_wait=1)
        with pytest.raises(RateLimitExceeded):
            limiter.reserve_many(11)
        assert [bool(call(way, limiter, "try_acquire")) for _ in range(11)] == [True] * 10 + [False]

    def test_local_waits_for_its_turn(self, down, name, way):
        limiter, calls = RateLimiter(name, "8/0.2s", on_unavailable="local", workers=4), []
        for _ in range(5):
            call(way, limiter, "acquire")
            calls.append((time.monotonic(), 1))
        assert most_within(calls, 0.2) <= 2

    def test_tenants_share_the_policy_of_their_limiter(self, down, name, way):
        """The shared limit's part is what counts, not that of a tenant's own quota."""
        limiter = RateLimiter(name, "8/h", tenants="4/h", on_unavailable="local", workers=4)
        assert [bool(call(way, limiter.tenant(key), "try_acquire")) for key in "aab"] == [True, True, False]


class TestGrace:
    def test_is_bounded_and_later_failures_do_not_prolong_it(self, down, name, clock):
        limiter = RateLimiter(name, "1/h", on_unavailable="open", grace=10)
        for _ in range(4):
            assert limiter.acquire()
            clock[0] += 3
        with pytest.raises(BackendUnavailable):
            limiter.acquire()
        clock[0] += 1000
        with pytest.raises(BackendUnavailable):
            limiter.acquire()

    def test_a_store_that_comes_and_goes_does_not_begin_it_anew(self, proxy, name, clock):
        limiter = RateLimiter(name, "100/h", on_unavailable="open", grace=10)
        for _ in range(3):
            proxy.refuse()
            assert not limiter.acquire().booked
            clock[0] += 2
            proxy.heal()
            assert limiter.acquire().booked
            clock[0] += 2
        proxy.refuse()
        with pytest.raises(BackendUnavailable):
            limiter.acquire()
        proxy.heal()
        assert limiter.acquire().booked
        clock[0] += 11
        proxy.refuse()
        assert not limiter.acquire().booked  # it had answered for as long as the grace period

    def test_the_store_is_not_asked_for_each_call_meanwhile(self, proxy, name):
        limiter = RateLimiter(name, "100/h", on_unavailable="open")
        proxy.say("LOADING later")
        with proxy.recorded() as sent:
            for _ in range(20):
                limiter.acquire()
        assert len(sent) <= 4


class TestSleepers:
    def test_a_waiter_that_wakes_during_an_outage(self, proxy, name):
        limiter = RateLimiter(name, "1/1.1s")
        limiter.acquire()
        ended: list[object] = []

        def wait() -> None:
            try:
                ended.append(limiter.acquire())
            except BackendUnavailable as error:
                ended.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        eventually(lambda: limiter.usage().windows[0].ahead == 1)
        proxy.refuse()
        thread.join(30)
        assert isinstance(ended[0], BackendUnavailable)

    def test_local_goes_on_alone(self, proxy, name, monkeypatch):
        """It books anew, in this process: what it had in the store is nobody's until that is back."""
        monkeypatch.setattr("django_tasklock.rates.slot_wait.CONFIRM_AFTER", 0.05)
        limiter = RateLimiter(name, "1/0.3s", on_unavailable="local", workers=1)
        limiter.acquire()
        reserved = limiter.reserve()
        store = reserved.stored.store
        proxy.refuse()
        assert reserved.use().booked
        assert reserved.stored.store is not store
        assert reserved.cancel()  # there


class TestRestart:
    def test_loses_at_most_a_window(self, configure, name):
        """Up to twice the limit in the window of the restart, never more; with ``cold_start='wait'`` not even that."""
        with RedisServer() as server:
            configure(LOCATION=server.url)
            calls = []
            limiter = RateLimiter(name, "10/0.4s", margin=0.1)
            for turn in range(26):
                limiter.acquire()
                calls.append((time.monotonic(), 1))
                if turn == 14:
                    server.kill()
                    server.start()
        assert most_within(calls, 0.4) <= 20
        first = calls[15][0]
        assert most_within([one for one in calls if one[0] >= first], 0.4) <= 10

    def test_a_hard_quota_waits(self, configure, name):
        with RedisServer() as server:
            configure(LOCATION=server.url)
            calls = []
            limiter = RateLimiter(name, "10/0.4s", margin=0.1, cold_start="wait")
            for turn in range(21):
                limiter.acquire()
                calls.append((time.monotonic(), 1))
                if turn == 14:
                    server.kill()
                    server.start()
        assert most_within(calls, 0.4) <= 10

    def test_a_waiter_that_slept_during_a_restart_books_again(self, configure, name, monkeypatch):
        monkeypatch.setattr("django_tasklock.rates.slot_wait.CONFIRM_AFTER", 0.1)
        with RedisServer() as server:
            configure(LOCATION=server.url)
            limiter, calls = RateLimiter(name, "2/0.5s", margin=0.1), []
            reservations = [limiter.reserve() for _ in range(6)]

            def wait(reservation) -> None:
                reservation.use()
                calls.append((time.monotonic(), 1))

            threads = at_once(wait, *((reservation,) for reservation in reservations[2:]))
            server.kill()
            server.start()
            since = time.monotonic()
            for thread in threads:
                thread.join(30)
        assert len(calls) == 4
        assert most_within([one for one in sorted(calls) if one[0] > since], 0.5) <= 2


def test_the_cache_backend_says_what_to_do(settings, name):
    settings.TASKLOCK = {"BACKEND": "django_tasklock.backends.cache.CacheBackend", "LOCATION": "default"}
    with pytest.raises(TaskLockError, match="CacheBackend keeps no rate limits"):
        RateLimiter(name, "1/s").acquire()
