"""What tests of users can let happen: somebody else holds, waits, uses a limit up; a holder is killed or overtaken."""

from __future__ import annotations

import threading
import unittest
from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.test import TestCase

from django_tasklock import (
    BackendUnavailable,
    ConcurrencyLimiter,
    LockLost,
    RateLimiter,
    StaleClaim,
    StateGuard,
    TaskLock,
    TaskLockError,
    acquire_task_lock,
    current_claim,
    current_lock,
    get_lock_info,
    is_task_locked,
    model_lock,
    signals,
    task_lock,
    testing,
)
from django_tasklock.backends import get_backend
from django_tasklock.backends.memory import MemoryBackend
from django_tasklock.locks.heartbeat import heartbeat
from tests.support.current import here
from tests.support.public import Received, in_store, setting
from tests.support.stores import eventually, stores
from tests.support.twins import thread_of
from tests.testapp.models import PlainVideo, Video


@pytest.fixture(params=stores("memory", "redis"))
def store(request: pytest.FixtureRequest, settings: Any) -> Iterator[str]:
    """The name of the store in force, empty."""
    yield from in_store(request.param, settings)


@pytest.fixture
def memory(settings: Any) -> Iterator[str]:
    yield from in_store("memory", settings)


class TestLockHeld:
    def test_somebody_else_has_it_until_the_block_ends(self, store: str) -> None:
        with testing.lock_held("report", host="web1", pid=7, task="app.tasks.report"):
            assert not acquire_task_lock("report")
            assert get_lock_info("report").holder.startswith("web1:7 (app.tasks.report[")
            testing.assert_locked("report")
            testing.assert_locked(TaskLock("report"))
        testing.assert_not_locked("report")
        assert acquire_task_lock("report")

    def test_who_holds_it_lives_until_it_is_killed(self, memory: str) -> None:
        holder = testing.lock_held("report", lease=60, timeout=600)
        testing.advance(300)
        testing.assert_locked("report")
        holder.kill()
        testing.assert_locked("report")
        testing.advance(60)
        testing.assert_not_locked("report")

    def test_its_release_wakes_who_waits(self, memory: str) -> None:
        holder, got = testing.lock_held("report"), []
        thread = thread_of(lambda: got.append(TaskLock("report").acquire(blocking_timeout=60)))
        thread.start()
        eventually(lambda: get_lock_info("report").waiting == 1)
        holder.release()
        thread.join(10)
        assert got == [True]

    def test_what_is_held_cannot_be_held_by_another(self, memory: str) -> None:
        with TaskLock("report"), pytest.raises(TaskLockError, match="'report' is held already by"):
            testing.lock_held("report")


class TestAsserts:
    def test_they_say_who_has_it(self, memory: str) -> None:
        held = pytest.raises(AssertionError, match="'report' is held by web1:7")
        with testing.lock_held("report", host="web1", pid=7), held:
            testing.assert_not_locked("report")
        with pytest.raises(AssertionError, match="the lock 'report' is free"):
            testing.assert_locked("report")


class TestWaiting:
    def test_in_order_behind_real_ones_and_seen_by_all(self, memory: str) -> None:
        holder = testing.lock_held("report")
        with testing.lock_waiting("report") as first, testing.lock_waiting("report") as second:
            assert get_lock_info("report").waiting == 2
            testing.advance(600)  # nobody falls asleep over it
            holder.release()
            assert (first.granted, second.granted) == (True, False)
            first.leave()
            assert second.granted
        testing.assert_not_locked("report")

    def test_only_where_there_is_something_to_wait_for(self, memory: str) -> None:
        with pytest.raises(TaskLockError, match="'report' is free"):
            testing.lock_waiting("report")

    def test_only_in_memory(self, settings: Any) -> None:
        settings.TASKLOCK = setting("redis")
        with pytest.raises(TaskLockError, match="the store in force is a RedisBackend"):
            testing.lock_waiting("report")


class TestLosing:
    def test_by_its_name_out_of_the_work(self, store: str) -> None:
        lost: list[bool] = []

        @task_lock("report", lease=60)
        def write() -> None:
            testing.lose("report")
            lost.append(current_lock().lost)
            assert acquire_task_lock("report")

        with Received(signals.lock_lost) as received:
            write()
        assert lost == [True]
        assert len(received) == 1
        testing.assert_locked("report")

    def test_in_another_thread(self, memory: str) -> None:
        taken, over, told = threading.Event(), threading.Event(), []

        def work() -> None:
            with TaskLock("report", on_lost=told.append):
                taken.set()
                assert over.wait(30)

        thread = threading.Thread(target=work)
        thread.start()
        assert taken.wait(30)
        testing.lose("report", "an outage")
        over.set()
        thread.join(30)
        assert told == ["an outage"]


class TestKilling:
    def test_what_runs_next_is_inside_of_nothing(self, memory: str) -> None:
        with TaskLock("outer") as outer:
            with TaskLock("report", lease=60):
                testing.kill_holder("report")
            assert current_lock() is outer
        lock = TaskLock("left")
        lock.__enter__()
        testing.reset()
        assert here(current_lock) is None

    def test_nobody_renews_it_or_gives_it_back(self, store: str) -> None:
        lock = TaskLock("report", lease=60)
        with lock:
            testing.kill_holder("report")
            assert (lock.held, lock.lost) == (False, False)
            assert len(heartbeat) == 0
        testing.assert_locked("report")
        assert not TaskLock("report").acquire(blocking=False)

    def test_it_is_free_after_its_lease(self, memory: str) -> None:
        with TaskLock("report", lease=60):
            testing.kill_holder("report")
        testing.advance(59)
        testing.assert_locked("report")
        testing.advance(1)
        with TaskLock("report"):
            testing.assert_locked("report")

    def test_a_simulated_holder_can_be_killed_by_name(self, memory: str) -> None:
        holder = testing.lock_held("report", lease=60)
        testing.kill_holder("report")
        testing.advance(60)
        testing.assert_not_locked("report")
        assert holder.name == "report"

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("ends", [None, ValueError("too late")], ids=["returns", "raises"])
    def test_it_writes_nothing_to_its_row(self, memory: str, ends: Exception | None) -> None:
        video = Video.objects.create(status="new")

        @model_lock(Video, "video:{pk}", pk="pk", guard=GUARD, lease=60)
        def process(pk: int) -> None:
            testing.kill_holder(f"video:{pk}")
            if ends is not None:
                raise ends

        if ends is None:
            process(video.pk)
        else:
            with pytest.raises(ValueError, match="too late"):
                process(video.pk)
        video.refresh_from_db()
        assert video.status == "processing"
        assert here(current_lock) is None
        testing.assert_locked(f"video:{video.pk}")


GUARD = StateGuard(claim_from=["new", "processing"], claim_as="processing", done="ready", failed="failed")


@pytest.mark.django_db(transaction=True)
class TestOvertaking:
    def test_nothing_more_is_written(self, memory: str) -> None:
        video = Video.objects.create(status="new")

        @model_lock(Video, "video:{pk}", pk="pk", guard=GUARD)
        def process(pk: int) -> None:
            testing.overtake()
            testing.assert_not_locked(f"video:{pk}")
            current_claim().update(status="wrong")

        with pytest.raises(StaleClaim):
            process(video.pk)
        before = video.lock_epoch
        video.refresh_from_db()
        assert (video.status, video.lock_epoch) == ("processing", before + 2)

    def test_overtaking_a_row_without_token_columns_raises(self, memory: str) -> None:
        video = PlainVideo.objects.create(status="new")
        with pytest.raises(TaskLockError, match="derive its model from GuardedModel"):
            model_lock(PlainVideo, "video:{pk}", pk="pk", guard=GUARD)(lambda pk: testing.overtake())(video.pk)


class TestLimits:
    @pytest.fixture(params=stores("memory", "redis"))
    def counting(self, request: pytest.FixtureRequest, settings: Any) -> Iterator[str]:
        """A store with limits."""
        yield from in_store(request.param, settings)

    def test_all_permits_are_taken(self, counting: str) -> None:
        limiter = ConcurrencyLimiter("transcode", 3)
        with limiter:
            with testing.limit_reached(limiter):
                assert limiter.info().used == 3
                refused: list[bool] = []
                thread = thread_of(lambda: refused.append(limiter.acquire(blocking=False)))
                thread.start()
                thread.join(30)
                assert refused == [False]
            assert limiter.info().used == 1

    def test_a_rate_is_used_up(self, counting: str) -> None:
        limiter = RateLimiter("mail", "1000/m", "5000/h")
        assert limiter.try_acquire()
        with testing.limit_reached(limiter):
            assert limiter.try_acquire() is None
        assert limiter.try_acquire()

    def test_by_the_name_in_the_settings(self, settings: Any) -> None:
        for _ in in_store("memory", settings, RATE_LIMITS={"mail": "10/s"}):
            with testing.limit_reached("mail"):
                assert RateLimiter("mail").try_acquire() is None

    def test_a_tenants(self, memory: str) -> None:
        limiter = RateLimiter("mail", "100/m", tenants="10/m")
        with testing.limit_reached(limiter.tenant("a")):
            assert limiter.tenant("a").try_acquire() is None
            assert limiter.tenant("b").try_acquire()


class TestStoreDown:
    def test_policies_decide(self, memory: str) -> None:
        with testing.store_down():
            with TaskLock("report", on_unavailable="run") as lock, pytest.raises(LockLost):
                lock.ensure_held()
            with pytest.raises(BackendUnavailable):
                TaskLock("report", on_unavailable="raise").acquire()
            with pytest.raises(BackendUnavailable):
                is_task_locked("report")
            with pytest.raises(BackendUnavailable):
                RateLimiter("mail", "1/m").try_acquire()
            with pytest.raises(BackendUnavailable):
                ConcurrencyLimiter("transcode", 1).info()

    def test_what_it_had_is_there_afterwards(self, memory: str) -> None:
        with TaskLock("report", lease=60) as lock:
            with testing.store_down():
                assert lock.held
            testing.assert_locked("report")
        testing.assert_not_locked("report")

    def test_a_waiter_fails_when_the_store_goes_down(self, memory: str) -> None:
        testing.lock_held("report")
        told: list[Exception] = []

        def wait() -> None:
            try:
                TaskLock("report", on_unavailable="raise").acquire(blocking_timeout=60)
            except BackendUnavailable as error:
                told.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        eventually(lambda: get_lock_info("report").waiting == 1)
        with testing.store_down():
            thread.join(10)
        assert len(told) == 1

    def test_only_in_memory(self, settings: Any) -> None:
        settings.TASKLOCK = setting("redis")
        with pytest.raises(TaskLockError, match=r"store_down\(\) shuts the memory store, but"):
            testing.store_down().__enter__()


class TestMixin(testing.TaskLockTestMixin, TestCase):
    """Run as a test case: the same lock in every test, none of which gives it back."""

    def test_one_of_two(self) -> None:
        self.assertNotLocked("report")
        assert TaskLock("report").acquire()
        self.assertLocked("report")
        assert isinstance(get_backend(), MemoryBackend)

    test_the_other = test_one_of_two

    def test_the_other_settings_stay(self) -> None:
        assert django_settings.TASKLOCK["LOCATION"].startswith("redis://")


def test_a_store_that_there_is_not() -> None:
    class Wrong(testing.TaskLockTestMixin, unittest.TestCase):
        tasklock_store = "disk"

        def test(self) -> None:
            """Never run."""

    result = Wrong("test").run()
    assert result is not None
    assert "tasklock_store must be 'memory' or 'settings', not 'disk'" in result.errors[0][1]
