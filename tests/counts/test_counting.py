"""What is counted, in this process, by what a project does: the same in every store."""

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
from django_tasklock.exceptions import TaskLockAcquireError
from django_tasklock.locks.heartbeat import heartbeat
from django_tasklock.locks.lease import Lease
from django_tasklock.rates.events import limiter_kind
from tests.support.counted import counted, durations
from tests.support.public import forked, in_store
from tests.support.stores import eventually

KIND = "video:{id}"
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(
    params=[
        pytest.param("redis", marks=pytest.mark.redis),
        pytest.param("database", marks=pytest.mark.database),
        "memory",
    ],
    autouse=True,
)
def store(request: Any, settings: Any) -> Any:
    yield from in_store(request.param, settings)


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
    def test_what_was_acquired_and_released(self) -> None:
        for name in ("video:1", "video:2"):
            with lock(name):
                pass
        kept = lock("video:3")
        assert kept.acquire()
        assert counted(KIND) == {"acquired": 3, "released": 2}

    def test_the_time_that_a_lock_was_held(self) -> None:
        began = time.monotonic()
        with lock("video:1"):
            time.sleep(0.03)
        most = (time.monotonic() - began) * 1000 + 5
        assert 25 <= durations("released", KIND) <= most

    def test_a_lock_that_is_acquired_again_counts_once(self) -> None:
        mine = lock("video:1", reentrant=True)
        with mine, mine:
            pass
        assert counted(KIND) == {"acquired": 1, "released": 1}

    def test_several_names_are_one_lock(self) -> None:
        with TaskLock("video:1", "video:2", kind=KIND):
            in_thread(lock("video:2").acquire)
        assert counted(KIND) == {"acquired": 1, "conflict:skip": 1, "released": 1}

    def test_the_plain_functions_have_no_kind(self) -> None:
        assert acquire_task_lock("video:1")
        assert not acquire_task_lock("video:1")
        with task_lock_context("video:1", raise_on_fail=False) as acquired:
            assert not acquired
        assert release_task_lock("video:1")
        assert counted("") == {"acquired": 1, "conflict:skip": 2, "released": 1}

    def test_conflicts_by_what_is_done(self) -> None:
        other = lock("video:1")

        def meet() -> None:
            with pytest.raises(TaskLockAcquireError), other:
                raise AssertionError("it is busy")
            assert not other.acquire()
            assert not other.acquire(blocking_timeout=0.01)

        with lock("video:1"):
            in_thread(meet)
        found = counted(KIND)
        assert {event: number for event, number in found.items() if event.startswith("conflict")} == {
            "conflict:raise": 1,
            "conflict:skip": 1,
            "conflict:timeout": 1,
        }

    def test_a_wait(self) -> None:
        mine, waiter = lock("video:1"), lock("video:1")
        assert mine.acquire()
        thread = a_thread(lambda: waiter.acquire(blocking_timeout=20))
        thread.start()
        time.sleep(0.2)
        mine.release()
        thread.join()
        assert counted(KIND) == {"acquired": 1, "waited": 1, "released": 1}
        assert 100 <= durations("waited", KIND) <= 15_000

    def test_a_blocking_acquire_of_a_free_lock_is_no_wait(self) -> None:
        assert lock("video:1").acquire(blocking_timeout=20)
        assert counted(KIND) == {"acquired": 1}

    def test_what_is_taken_away_is_forced_and_lost_and_not_released(self) -> None:
        mine = lock("video:1", lease=3)
        assert mine.acquire()
        assert force_release_task_lock("video:1")
        eventually(lambda: mine.lost)
        eventually(lambda: counted(KIND).get("lost"))
        assert not mine.release()
        assert counted(KIND) == {"acquired": 1, "forced": 1, "lost": 1}

    def test_a_lease_that_ran_out_is_counted_by_the_next_caller_once(self) -> None:
        assert TaskLock("video:1", kind="dead", lease=None, timeout=2).acquire()
        assert TaskLock("video:2", kind="dead", lease=None, timeout=2).acquire()
        time.sleep(2.1)
        with lock("video:1"):
            in_thread(lock("video:1").acquire)
        with lock("video:1"):
            pass
        assert lock("video:2").acquire(blocking_timeout=20)
        assert counted(KIND) == {"acquired": 3, "released": 2, "expired": 2, "conflict:skip": 1}

    def test_one_that_a_waiter_waited_for(self) -> None:
        assert TaskLock("video:1", kind="dead", lease=None, timeout=2).acquire()
        waiters = [a_thread(lambda: lock("video:1").acquire(blocking_timeout=20)) for _ in range(3)]
        for waiter in waiters:
            waiter.start()
        eventually(lambda: counted(KIND).get("waited"))
        while any(waiter.is_alive() for waiter in waiters):
            force_release_task_lock("video:1")
            time.sleep(0.05)
        assert counted(KIND)["expired"] == 1

    def test_one_that_the_heartbeat_releases(self) -> None:
        lease = lock("video:1").take()
        assert isinstance(lease, Lease)
        heartbeat.release_later(lease, 60_000)
        eventually(lambda: counted(KIND) == {"acquired": 1, "released": 1})


def test_a_grant_that_its_caller_never_gets_counts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
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
    def test_permits(self) -> None:
        limiter, other = ConcurrencyLimiter("transcode", 1), ConcurrencyLimiter("transcode", 1)
        with limiter:
            in_thread(lambda: other.acquire(blocking=False))
        assert counted("transcode") == {"limit.granted": 1, "limit.refused": 1, "limit.released": 1}

    def test_permits_whose_leases_ran_out(self) -> None:
        for _ in range(2):
            in_thread(ConcurrencyLimiter("transcode", 3, lease=None, timeout=2).acquire)
        time.sleep(2.1)
        for _ in range(2):
            in_thread(ConcurrencyLimiter("transcode", 3).acquire)
        assert counted("transcode") == {"limit.granted": 4, "limit.expired": 2}

    def test_a_permit_that_is_taken_away(self) -> None:
        limiter = ConcurrencyLimiter("transcode", 1)
        assert limiter.acquire()
        [member] = limiter.members()
        assert limiter.remove(member.fingerprint)
        assert counted("transcode") == {"limit.granted": 1, "limit.forced": 1}

    def test_rates(self) -> None:
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

    def test_tenants_are_one_kind(self) -> None:
        limiter = RateLimiter("api", "9/m", tenants="2/m")
        limiter.tenant("acme").acquire()
        limiter.acquire()
        assert counted("api:tenant") == {"limit.granted": 2}
        assert counted("api") == {"limit.granted": 2}

    @pytest.mark.parametrize("name", ["n" * 101, "n" * 200, 'a|"b"'])
    def test_a_limiter_of_rates_and_one_of_concurrency_are_counted_by_one_name(self, name: str) -> None:
        with ConcurrencyLimiter(name, 1), RateLimiter(name, "1/h"):
            pass
        assert {one.kind for one in counts.pending()} == {limiter_kind(name)}


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
    """One store is enough."""

    @pytest.fixture(params=["memory"], autouse=True)
    def store(self, request: Any, settings: Any) -> Any:
        yield from in_store(request.param, settings)

    @pytest.mark.parametrize("begin", ["x" * 100, "报" * 100, "报告" * 25, "x" * 90 + "报"])
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

    def test_more_events_than_are_kept_one_by_one(self) -> None:
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

    def test_a_thread_that_cannot_be_started_is_started_later(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        counts.after_fork()
        monkeypatch.setattr(counts, "_in_tests", lambda: False)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", fail)
            counts.count(counts.ACQUIRED, KIND)
            assert not counts.flush(1)
        assert counted(KIND) == {"acquired": 1}
        assert counts.flush()
        assert counted(KIND) == {}
        counts.after_fork()
