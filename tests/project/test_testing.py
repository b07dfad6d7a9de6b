"""``django_tasklock.testing``: what tests of users can let happen, and that nothing of it is left for the next test."""

from __future__ import annotations

import doctest
import inspect
import threading
import time
import unittest
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.test import TestCase

import django_tasklock
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
    counts,
    current_claim,
    current_lock,
    get_lock_info,
    is_task_locked,
    model_lock,
    release_task_lock,
    signals,
    testing,
)
from django_tasklock.backends import get_backend
from django_tasklock.backends.memory import MemoryBackend
from django_tasklock.locks.heartbeat import heartbeat
from django_tasklock.process import AFTER_FORK
from tests.support.current import here
from tests.support.guards import elsewhere, heard
from tests.support.public import in_store, script, setting
from tests.support.stores import eventually, stores
from tests.support.twins import thread_of
from tests.testapp.models import PlainVideo, Video

GUARD = StateGuard(claim_from=["new", "processing"], claim_as="processing", done="ready", failed="failed")


@pytest.fixture(params=stores("memory", "redis"))
def store(request: pytest.FixtureRequest, settings: Any) -> Iterator[str]:
    """The name of the store in force, empty."""
    yield from in_store(request.param, settings)


@pytest.fixture
def memory(settings: Any) -> Iterator[str]:
    yield from in_store("memory", settings)


def waiting(**options: Any) -> tuple[threading.Thread, list[Any]]:
    """A thread that waits for the lock ``report``, and what comes of that."""
    ended: list[Any] = []

    def wait() -> None:
        try:
            ended.append(TaskLock("report", **options).acquire(blocking_timeout=60))
        except BackendUnavailable as error:
            ended.append(type(error))

    thread = thread_of(wait)
    thread.start()
    eventually(lambda: get_lock_info("report").waiting == 1)
    return thread, ended


class TestForgetting:
    def test_what_was_held_is_held_by_nobody_here_and_busy_in_the_store(self, store: str) -> None:
        lock, limiter = TaskLock("report", lease=60), ConcurrencyLimiter("transcode", 2)
        assert lock.acquire()
        assert limiter.acquire()
        assert acquire_task_lock("mail", timeout=60)
        counts.count(counts.LOST, "mail")
        testing.forget()
        assert counts.pending() == []
        assert (lock.held, lock.taken, limiter.held, len(heartbeat)) == (False, False, False, 0)
        assert is_task_locked("report")
        assert not TaskLock("report").acquire()
        assert release_task_lock("mail") is False
        assert limiter.info().used == 1

    def test_after_a_reset_the_memory_store_is_empty_and_its_time_is_now(self, memory: str) -> None:
        assert acquire_task_lock("report")
        assert ConcurrencyLimiter("transcode", 1).acquire()
        RateLimiter("mail", "1/m").acquire()
        testing.advance(3600)
        testing.reset()
        assert not is_task_locked("report")
        assert ConcurrencyLimiter("transcode", 1).acquire(blocking=False)
        RateLimiter("mail", "1/m").acquire(blocking_timeout=0.01)
        assert acquire_task_lock("report")
        assert abs(get_lock_info("report").acquired_at.timestamp() - time.time()) < 60

    def test_every_module_that_begins_anew_in_a_fork_is_forgotten_or_has_nothing_of_locks(self) -> None:
        stays = {
            "django_tasklock.locks.holder",  # which process this is
            "django_tasklock.backends",  # the store in force, and its connections
            "django_tasklock.backends.contract.threads",  # those that run verbs for coroutines
            "django_tasklock.backends.memory.store",  # emptied by reset()
            "django_tasklock.db.connections",  # scopes of bodies that run
            "django_tasklock.db.pools",  # connections
            "django_tasklock.db.forks",  # threads
        }
        assert set(AFTER_FORK) - stays <= set(testing.REMEMBERING)


class TestAdvance:
    def test_leases_end_and_windows_pass(self, memory: str) -> None:
        limiter = RateLimiter("mail", "1/h")
        limiter.acquire()
        assert acquire_task_lock("report", timeout=3600)
        testing.advance(timedelta(hours=2))
        assert not is_task_locked("report")
        limiter.acquire(blocking_timeout=0.01)

    def test_who_waits_looks_again(self, memory: str) -> None:
        assert acquire_task_lock("report", timeout=3600)
        thread, ended = waiting()
        testing.advance(3601)
        thread.join(10)
        assert ended == [True]

    @pytest.mark.parametrize("seconds", [0, -1, float("nan"), "60"])
    def test_time_does_not_stand_or_go_back(self, memory: str, seconds: Any) -> None:
        with pytest.raises(TaskLockError, match="seconds must be"):
            testing.advance(seconds)


class TestLockHeld:
    def test_somebody_else_has_it_until_the_block_ends(self, store: str) -> None:
        with testing.lock_held("report", host="web1", pid=7, task="app.tasks.report"):
            assert not acquire_task_lock("report")
            assert get_lock_info("report").holder.startswith("web1:7 (app.tasks.report[")
            testing.assert_locked("report")
            testing.assert_locked(TaskLock("report"))
            with pytest.raises(AssertionError, match="'report' is held by web1:7"):
                testing.assert_not_locked("report")
        testing.assert_not_locked("report")
        with pytest.raises(AssertionError, match="the lock 'report' is free"):
            testing.assert_locked("report")
        assert acquire_task_lock("report")

    def test_who_holds_it_lives_until_it_is_killed(self, memory: str) -> None:
        holder = testing.lock_held("report", lease=60, timeout=600)
        testing.advance(300)
        testing.assert_locked("report")
        testing.kill_holder("report")
        testing.assert_locked("report")
        testing.advance(60)
        testing.assert_not_locked("report")
        assert holder.name == "report"

    def test_others_wait_in_order_and_are_seen_by_all(self, memory: str) -> None:
        holder = testing.lock_held("report")
        with testing.lock_waiting("report") as first, testing.lock_waiting("report") as second:
            assert get_lock_info("report").waiting == 2
            testing.advance(600)  # nobody falls asleep over it
            holder.release()
            assert (first.granted, second.granted) == (True, False)
            first.leave()
            assert second.granted
        testing.assert_not_locked("report")

    def test_what_cannot_be_is_refused(self, memory: str) -> None:
        with TaskLock("report"), pytest.raises(TaskLockError, match="'report' is held already by"):
            testing.lock_held("report")
        with pytest.raises(TaskLockError, match="'report' is free"):
            testing.lock_waiting("report")


@pytest.mark.parametrize(
    ("act", "why"),
    [
        (lambda: testing.advance(60), "moves the clock of the memory store, but the store in force is"),
        (lambda: testing.lock_waiting("report"), "the store in force is a RedisBackend"),
        (lambda: testing.store_down().__enter__(), r"store_down\(\) shuts the memory store, but"),
    ],
)
def test_what_needs_the_memory_store_says_so(settings: Any, act: Any, why: str) -> None:
    settings.TASKLOCK = setting("redis")
    with pytest.raises(TaskLockError, match=why):
        act()


class TestLosing:
    def test_its_holder_knows_at_once_and_others_can_take_it(self, store: str) -> None:
        told: list[str] = []
        loss = heard(signals.lock_lost, "report")
        with TaskLock("report", lease=60, on_lost=told.append) as lock, loss as received:
            testing.lose(lock)
            assert (told, len(received), lock.lost) == (["a test says so"], 1, True)
            with pytest.raises(LockLost, match="is lost: a test says so"):
                lock.ensure_held()
            assert acquire_task_lock("report")
        testing.assert_locked("report")
        with ConcurrencyLimiter("transcode", 1) as limiter:
            testing.lose(limiter)
            assert limiter.lost
            assert limiter.info().used == 0

    def test_by_its_name_in_another_thread(self, memory: str) -> None:
        told: list[str] = []
        with TaskLock("report", on_lost=told.append):
            elsewhere(lambda: testing.lose("report", "an outage"))
            assert told == ["an outage"]


class TestKilling:
    def test_nobody_renews_it_or_gives_it_back(self, store: str) -> None:
        with TaskLock("outer") as outer:
            with TaskLock("report", lease=60) as lock:
                testing.kill_holder("report")
                assert (lock.held, lock.lost, len(heartbeat)) == (False, False, 1)
            assert current_lock() is outer
        testing.assert_locked("report")
        assert not TaskLock("report").acquire(blocking=False)

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


@pytest.mark.django_db(transaction=True)
def test_who_is_overtaken_writes_nothing_more(memory: str) -> None:
    video = Video.objects.create(status="new")

    @model_lock(Video, "video:{pk}", pk="pk", guard=GUARD)
    def process(pk: int) -> None:
        testing.overtake()
        testing.assert_not_locked(f"video:{pk}")
        current_claim().update(status="wrong")

    with pytest.raises(StaleClaim):
        process(video.pk)
    video.refresh_from_db()
    assert (video.status, video.lock_epoch) == ("processing", 2)
    plain = PlainVideo.objects.create(status="new")
    with pytest.raises(TaskLockError, match="derive its model from GuardedModel"):
        model_lock(PlainVideo, "plain:{pk}", pk="pk", guard=GUARD)(lambda pk: testing.overtake())(plain.pk)


class TestLimits:
    def test_all_that_is_left_is_taken(self, store: str) -> None:
        permits, rate = ConcurrencyLimiter("transcode", 3), RateLimiter("mail", "1000/m", "5000/h")
        with permits:
            with testing.limit_reached(permits):
                assert permits.info().used == 3
                assert not elsewhere(lambda: permits.acquire(blocking=False))
            assert permits.info().used == 1
        assert rate.try_acquire()
        with testing.limit_reached(rate):
            assert rate.try_acquire() is None
        assert rate.try_acquire()

    def test_by_the_name_in_the_settings_and_a_tenants(self, settings: Any) -> None:
        for _ in in_store("memory", settings, RATE_LIMITS={"mail": "10/s"}):
            with testing.limit_reached("mail"):
                assert RateLimiter("mail").try_acquire() is None
            limiter = RateLimiter("others", "100/m", tenants="10/m")
            with testing.limit_reached(limiter.tenant("a")):
                assert limiter.tenant("a").try_acquire() is None
                assert limiter.tenant("b").try_acquire()


class TestStoreDown:
    def test_policies_decide_and_what_it_had_is_there_afterwards(self, memory: str) -> None:
        with TaskLock("kept", lease=60) as kept:
            with testing.store_down():
                assert kept.held
                with TaskLock("report", on_unavailable="run") as lock, pytest.raises(LockLost):
                    lock.ensure_held()
                for ask in (
                    TaskLock("report", on_unavailable="raise").acquire,
                    lambda: is_task_locked("report"),
                    RateLimiter("mail", "1/m").try_acquire,
                    ConcurrencyLimiter("transcode", 1).info,
                ):
                    with pytest.raises(BackendUnavailable):
                        ask()
            testing.assert_locked("kept")
        testing.assert_not_locked("kept")

    def test_a_waiter_fails_when_the_store_goes_down(self, memory: str) -> None:
        testing.lock_held("report")
        thread, ended = waiting(on_unavailable="raise")
        with testing.store_down():
            thread.join(10)
        assert ended == [BackendUnavailable]


class TestMixin(testing.TaskLockTestMixin, TestCase):
    """Run as a test case: the same lock in every test, none of which gives it back."""

    def test_one_of_two(self) -> None:
        self.assertNotLocked("report")
        assert TaskLock("report").acquire()
        self.assertLocked("report")
        assert isinstance(get_backend(), MemoryBackend)
        assert django_settings.TASKLOCK["LOCATION"].startswith("redis://"), "the other settings stay"

    test_the_other = test_one_of_two


def test_a_store_that_there_is_not() -> None:
    class Wrong(testing.TaskLockTestMixin, unittest.TestCase):
        tasklock_store = "disk"

        def test(self) -> None:
            """Never run."""

    result = Wrong("test").run()
    assert result is not None
    assert "tasklock_store must be 'memory' or 'settings', not 'disk'" in result.errors[0][1]


def test_the_examples_are_true(memory: str) -> None:
    functions = [getattr(testing, name) for name in testing.__all__ if inspect.isfunction(getattr(testing, name))]
    for function in functions:
        if function is testing.overtake:
            continue  # it needs a row
        testing.reset()
        globs = {**{name: getattr(django_tasklock, name) for name in django_tasklock.__all__}, "testing": testing}
        [example] = doctest.DocTestFinder(recurse=False).find(function, globs=globs)
        assert example.examples, function
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS, verbose=False)
        assert runner.run(example).failed == 0


def test_importing_it_brings_neither_pytest_nor_celery_nor_models() -> None:
    said = script(
        "import sys, django_tasklock.testing\n"
        "print([name for name in sys.modules if name in ('pytest', 'celery', 'django_tasklock.models')])"
    )
    assert said == "[]\n"
