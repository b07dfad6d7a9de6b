"""``django_tasklock.testing``: what it forgets, loses and lets pass, with every store where that has a meaning."""

from __future__ import annotations

import doctest
import inspect
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

import django_tasklock
from django_tasklock import (
    ConcurrencyLimiter,
    LockLost,
    RateLimiter,
    TaskLock,
    TaskLockError,
    acquire_task_lock,
    counts,
    get_lock_info,
    is_task_locked,
    release_task_lock,
    signals,
    testing,
)
from django_tasklock.locks.heartbeat import heartbeat
from django_tasklock.process import AFTER_FORK
from tests.support.public import Received, in_store, script, setting
from tests.support.stores import eventually, stores


@pytest.fixture(params=stores("memory", "redis"))
def store(request: pytest.FixtureRequest, settings: Any) -> Iterator[str]:
    """The name of the store in force, empty."""
    yield from in_store(request.param, settings)


@pytest.fixture
def memory(settings: Any) -> Iterator[str]:
    yield from in_store("memory", settings)


class TestForget:
    def test_what_was_held_is_held_by_nobody_here_and_busy_in_the_store(self, store: str) -> None:
        lock = TaskLock("report", lease=60)
        assert lock.acquire()
        assert acquire_task_lock("mail", timeout=60)
        testing.forget()
        assert not lock.held
        assert not lock.taken
        assert len(heartbeat) == 0
        assert is_task_locked("report")
        assert not TaskLock("report").acquire()
        assert release_task_lock("mail") is False
        assert is_task_locked("mail")

    def test_permits_and_what_other_threads_have(self, memory: str) -> None:
        limiter, taken = ConcurrencyLimiter("transcode", 2), threading.Event()
        over = threading.Event()
        kept: list[bool] = []

        def work() -> None:
            assert limiter.acquire()
            taken.set()
            assert over.wait(30)
            kept.append(limiter.held)

        thread = threading.Thread(target=work)
        thread.start()
        assert taken.wait(30)
        assert limiter.acquire()
        testing.forget()
        over.set()
        thread.join(30)
        assert kept == [False]
        assert not limiter.held
        assert limiter.info().used == 2

    def test_counts_and_what_was_heard_of_limits(self, memory: str, settings: Any) -> None:
        settings.TASKLOCK = setting("redis", LOCATION="redis://127.0.0.1:1/0")
        outage = RateLimiter("mail", "1/m", on_unavailable="open")
        outage.acquire()
        counts.count(counts.LOST, "mail")
        assert counts.pending()
        testing.forget()
        assert counts.pending() == []


class TestReset:
    def test_the_memory_store_is_empty_and_its_time_is_now(self, memory: str) -> None:
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

    def test_the_last_test_left_nothing(self, settings: Any) -> None:
        """Without a call of it, nor of anything else that empties a store: the other of these two held two locks."""
        settings.TASKLOCK = setting("memory")
        assert not is_task_locked("report")
        assert len(heartbeat) == 0
        assert acquire_task_lock("report")
        assert TaskLock("kept", lease=60).acquire()

    test_nor_did_that_one = test_the_last_test_left_nothing

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


class TestLose:
    def test_its_holder_knows_at_once_and_others_can_take_it(self, store: str) -> None:
        told: list[str] = []
        with TaskLock("report", lease=60, on_lost=told.append) as lock, Received(signals.lock_lost) as received:
            testing.lose(lock)
            assert told == ["a test says so"]
            assert len(received) == 1
            assert lock.lost
            with pytest.raises(LockLost, match="is lost: a test says so"):
                lock.ensure_held()
            assert acquire_task_lock("report")
        assert is_task_locked("report")

    def test_permits_too(self, store: str) -> None:
        limiter = ConcurrencyLimiter("transcode", 1)
        with limiter:
            testing.lose(limiter)
            assert limiter.lost
            assert limiter.info().used == 0


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
        got: list[bool] = []
        thread = threading.Thread(target=lambda: got.append(TaskLock("report").acquire(blocking_timeout=60)))
        thread.start()
        eventually(lambda: get_lock_info("report").waiting == 1)
        testing.advance(3601)
        thread.join(10)
        assert got == [True]

    @pytest.mark.parametrize("seconds", [0, -1, float("nan"), "60"])
    def test_time_does_not_stand_or_go_back(self, memory: str, seconds: Any) -> None:
        with pytest.raises(TaskLockError, match="seconds must be"):
            testing.advance(seconds)

    def test_the_clock_of_another_store_is_its_servers(self, settings: Any) -> None:
        for _ in in_store("redis", settings):
            with pytest.raises(TaskLockError, match="moves the clock of the memory store, but the store in force is"):
                testing.advance(60)


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
