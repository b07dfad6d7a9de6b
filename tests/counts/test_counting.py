"""What a project does is counted: each event once, by its kind, in this process, whatever the store."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from django_tasklock import (
    ConcurrencyLimiter,
    RateLimiter,
    RateLimitExceeded,
    TaskLock,
    acquire_task_lock,
    counts,
    force_release_task_lock,
    release_task_lock,
    released_connections,
    task_lock_context,
)
from django_tasklock.backends import get_backend
from django_tasklock.backends.memory import advance
from django_tasklock.exceptions import TaskLockAcquireError
from tests.support.counted import counted, durations
from tests.support.public import forked, in_store
from tests.support.stores import eventually

KIND = "video:{id}"
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(params=["memory"], autouse=True)
def store(request: Any, settings: Any) -> Any:
    yield from in_store(request.param, settings)


stores = pytest.mark.parametrize(
    "store",
    [pytest.param("redis", marks=pytest.mark.redis), pytest.param("database", marks=pytest.mark.database), "memory"],
    indirect=True,
)


def a_thread(work: Any) -> threading.Thread:
    """One that does this and leaves no connection open: the store may be the database."""
    return threading.Thread(target=released_connections()(work))


def in_thread(work: Any) -> None:
    """Run it as another owner."""
    thread = a_thread(work)
    thread.start()
    thread.join()


def lock(name: str, **options: Any) -> TaskLock:
    return TaskLock(name, kind=KIND, **options)


class TestLocks:
    @stores
    def test_what_was_acquired_released_met_and_taken_away(self, store: str) -> None:
        """The time that a lock was held is that of its releases."""
        began = time.monotonic()
        for name in ("video:1", "video:2"):
            with lock(name):
                in_thread(lock(name).acquire)
                assert counted(KIND)["acquired"]
        most = (time.monotonic() - began) * 1000
        assert lock("video:3").acquire()
        assert force_release_task_lock("video:3")
        assert counted(KIND) == {"acquired": 3, "conflict:skip": 2, "released": 2, "forced": 1}
        assert 0 <= durations("released", KIND) <= most + 5

    def test_one_lock_of_several_names_or_that_is_acquired_again_counts_once(self) -> None:
        mine = lock("video:1", reentrant=True)
        with mine, mine, TaskLock("video:2", "video:3", kind=KIND):
            pass
        assert counted(KIND) == {"acquired": 2, "released": 2}

    def test_the_plain_functions_have_no_kind_and_conflicts_are_told_apart(self) -> None:
        assert acquire_task_lock("video:1")
        assert not acquire_task_lock("video:1")
        with task_lock_context("video:1", raise_on_fail=False) as acquired:
            assert not acquired
        assert release_task_lock("video:1")
        assert counted("") == {"acquired": 1, "conflict:skip": 2, "released": 1}
        other = lock("video:1")

        def meet() -> None:
            with pytest.raises(TaskLockAcquireError), other:
                raise AssertionError("it is busy")
            assert not other.acquire(blocking_timeout=0.01)

        with lock("video:1"):
            in_thread(meet)
        assert counted(KIND) == {"acquired": 1, "released": 1, "conflict:raise": 1, "conflict:timeout": 1}

    @stores
    def test_a_wait(self, store: str) -> None:
        """A blocking call that finds the lock free has not waited."""
        mine, waiter = lock("video:1"), lock("video:1")
        assert mine.acquire(blocking_timeout=20)
        assert counted(KIND) == {"acquired": 1}
        thread = a_thread(lambda: waiter.acquire(blocking_timeout=20))
        began = time.monotonic()
        thread.start()
        if get_backend().wakes:
            eventually(lambda: mine.info().waiting)
        mine.release()
        thread.join()
        assert counted(KIND) in ({"acquired": 1, "waited": 1, "released": 1}, {"acquired": 2, "released": 1})
        assert durations("waited", KIND) <= (time.monotonic() - began) * 1000 + 5

    def test_a_lease_or_permit_that_ran_out_is_counted_by_the_next_caller_once(self) -> None:
        assert TaskLock("video:1", kind="dead", lease=None, timeout=2).acquire()
        assert TaskLock("video:2", kind="dead", lease=None, timeout=2).acquire()
        advance(2.1)
        with lock("video:1"):
            in_thread(lock("video:1").acquire)
        with lock("video:1"):
            pass
        assert lock("video:2").acquire(blocking_timeout=20)
        assert counted(KIND) == {"acquired": 3, "released": 2, "expired": 2, "conflict:skip": 1}
        for _ in range(2):
            in_thread(ConcurrencyLimiter("transcode", 3, lease=None, timeout=2).acquire)
        advance(2.1)
        for _ in range(2):
            in_thread(ConcurrencyLimiter("transcode", 3).acquire)
        assert counted("transcode") == {"limit.granted": 4, "limit.expired": 2}

    def test_what_is_taken_away_is_forced_and_lost_and_not_released(self) -> None:
        mine = lock("video:1", lease=3)
        assert mine.acquire()
        assert force_release_task_lock("video:1")
        eventually(lambda: mine.lost)
        eventually(lambda: counted(KIND).get("lost"))
        assert not mine.release()
        assert counted(KIND) == {"acquired": 1, "forced": 1, "lost": 1}

    def test_a_grant_that_its_caller_never_gets_counts_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Neither does its release."""
        acquire = get_backend().acquire

        def struck(request: Any) -> Any:
            acquire(request)
            raise KeyboardInterrupt

        monkeypatch.setattr(get_backend(), "acquire", struck)
        mine = lock("video:1")
        with pytest.raises(KeyboardInterrupt):
            mine.acquire()
        eventually(lambda: not mine.locked())
        assert counted(KIND) == {}


class TestLimiters:
    @stores
    def test_permits(self, store: str) -> None:
        limiter, other = ConcurrencyLimiter("transcode", 1), ConcurrencyLimiter("transcode", 1)
        with limiter:
            in_thread(lambda: other.acquire(blocking=False))
        assert limiter.acquire()
        [member] = limiter.members()
        assert limiter.remove(member.fingerprint)
        known = {"limit.granted": 2, "limit.refused": 1, "limit.released": 1, "limit.forced": 1}
        assert counted("transcode") == known

    @stores
    def test_rates_and_of_tenants_one_kind(self, store: str) -> None:
        limiter = RateLimiter("searcher", "1/m")
        limiter.acquire()
        with pytest.raises(RateLimitExceeded):
            limiter.acquire(0.001)
        limiter.reserve().cancel()
        limiter.penalize(1)
        assert counted("searcher") == {
            "limit.granted": 1,
            "limit.waited": 1,
            "limit.refused": 1,
            "limit.cancelled": 1,
            "limit.pushback": 1,
        }
        assert 0 < durations("limit.waited", "searcher") <= 61_000
        limiter = RateLimiter("api", "9/m", tenants="2/m")
        limiter.tenant("acme").acquire()
        limiter.acquire()
        assert counted("api:tenant") == {"limit.granted": 2}
        assert counted("api") == {"limit.granted": 2}


def test_switched_off(settings: Any) -> None:
    settings.TASKLOCK = {**settings.TASKLOCK, "METRICS": False}
    with lock("video:1"), ConcurrencyLimiter("transcode", 1):
        assert not acquire_task_lock("video:1")
    RateLimiter("searcher", "1/m").acquire()
    assert counts.pending() == []


def test_a_forked_child_begins_at_zero() -> None:
    with lock("video:1"):
        pass

    def child() -> Any:
        before = counts.pending()
        counts.count(counts.FORCED, KIND)
        return before, counted(KIND)

    assert forked(child) == ([], {"forced": 1})
    assert counted(KIND) == {"acquired": 1, "released": 1}


class TestKinds:
    @pytest.mark.parametrize("begin", ["x" * 100, "报告" * 25, "x" * 90 + "报"])
    def test_long_ones_are_told_apart(self, begin: str) -> None:
        for end in ("{day}", "{week}", "{week}"):
            counts.count(counts.ACQUIRED, counts.clean_kind(begin + end))
        found = {one.kind: one.number for one in counts.pending()}
        assert sorted(found.values()) == [1, 2]
        for kind in found:
            assert kind[:10] == begin[:10]
            assert len(kind.encode("ascii", "backslashreplace")) <= 100

    def test_there_are_two_hundred(self) -> None:
        counts.after_fork()
        for number in range(300):
            counts.count(counts.ACQUIRED, f"kind-{number}")
        found = {one.kind: one.number for one in counts.pending()}
        assert len(found) == 201
        assert found["(others)"] == 100
        counts.after_fork()

    def test_threads_lose_none(self) -> None:
        def work() -> None:
            for _ in range(6000):
                counts.count(counts.WAITED, KIND, 3)

        threads = [a_thread(work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert counted(KIND) == {"waited": 24_000}
        assert durations("waited", KIND) == 72_000
