"""``ConcurrencyLimiter``: what one process sees of it; the stores' part is in the contract."""

from __future__ import annotations

import logging
import sys
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from math import inf
from typing import Any

import pytest
from django.db import connections

from django_tasklock import (
    ConcurrencyLimiter,
    LockLost,
    TaskLock,
    TaskLockAcquireError,
    TaskLockError,
    counts,
    current_limiter,
    current_lock,
    signals,
)
from django_tasklock.backends import get_backend
from django_tasklock.locks.lease import Lease
from django_tasklock.types import Released, fingerprint
from tests.support.current import here
from tests.support.guards import heard
from tests.support.public import in_store, setting
from tests.support.stores import eventually
from tests.support.twins import TWINS, call, conflict


@pytest.fixture(params=["memory"])
def store(request: Any, settings: Any) -> Iterator[str]:
    """The name of the store in force, empty."""
    yield from in_store(request.param, settings)


@contextmanager
def elsewhere() -> Iterator[Callable[..., Any]]:
    """``run(function, ...)`` runs it in another thread, always the same one, and waits for it."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda function, *args: pool.submit(function, *args).result(30)
        pool.submit(connections.close_all).result(30)


class TestPermits:
    @TWINS
    def test_one_that_is_not_free_in_time_says_who_has_one(self, store, way):
        limiter = ConcurrencyLimiter("transcode", 1, blocking_timeout=0.05)
        with elsewhere() as run:
            run(limiter.acquire)
            with pytest.raises(TaskLockAcquireError, match=r"limiter 'transcode': none of 1 permits is free; one is"):
                limiter.__enter__()
            error = conflict(way, limiter)
            assert error.name == "transcode"
            assert error.holder == limiter.members()[0].holder
            assert 3500 < error.time_left <= 3600
            run(limiter.release)

    @TWINS
    def test_a_call_that_only_says_that_it_waits_does_so_for_as_long_as_the_object_says(self, store, way):
        """As in redis-py; a ``blocking_timeout`` of the call comes first."""
        lock, limiter = TaskLock("transcode", blocking_timeout=0.05), ConcurrencyLimiter("transcode", 1)
        patient = ConcurrencyLimiter("transcode", 1, blocking_timeout=0.05)
        with elsewhere() as run:
            held = run(TaskLock("transcode").take)
            run(limiter.acquire)
            for waiter in (lock, patient):
                assert call(way, waiter, "acquire", blocking=True) is False
                assert call(way, waiter, "acquire", blocking=True, blocking_timeout=0.001) is False
            run(lock.give, held)
            run(limiter.release)

    def test_releasing_a_permit_twice_does_not_release_the_permit_of_another_owner(self, store):
        """Gold standard 8.4: one object shared by many threads, each of which may only release its own."""
        limiter = ConcurrencyLimiter("transcode", 2)
        with elsewhere() as one, elsewhere() as two, elsewhere() as three:
            one(limiter.acquire)
            two(limiter.acquire)
            assert one(limiter.release) is Released.RELEASED
            for run in (one, three):
                with pytest.raises(TaskLockError, match="limiter 'transcode' is not held through this object"):
                    run(limiter.release)
            assert two(lambda: limiter.held)
            assert len(limiter.members()) == 1
            assert three(lambda: limiter.acquire(blocking=False))
            assert not one(lambda: limiter.acquire(blocking=False))
            assert two(limiter.release) is Released.RELEASED
            assert three(limiter.release) is Released.RELEASED

    def test_threads_that_acquire_at_once_through_one_object_keep_their_permits(self, store, monkeypatch):
        """A lease that nobody has any more is not renewed, and cannot be released."""
        limiter, leases = ConcurrencyLimiter("transcode", 10_000), weakref.WeakSet[Lease]()

        def take(wait: float) -> Lease:  # at once, so that the threads meet where they keep what they were given
            leases.add(lease := Lease(get_backend().permits, "transcode", None))
            lease.deadline = inf
            return lease

        def take_many() -> None:
            for _ in range(300):
                assert limiter.acquire()

        monkeypatch.setattr(limiter, "take", take)
        interval = sys.getswitchinterval()
        try:
            sys.setswitchinterval(1e-6)
            with ThreadPoolExecutor(8) as pool:
                for done in [pool.submit(take_many) for _ in range(8)]:
                    done.result(60)
        finally:
            sys.setswitchinterval(interval)
        assert len(leases) == 8 * 300

    def test_a_nested_call_goes_on_with_the_permit_of_its_thread(self, store):
        """It would wait for itself for ever."""
        with ConcurrencyLimiter("transcode", 1), ConcurrencyLimiter("transcode", 1) as inner:
            assert inner.info().used == 1
            inner_again = ConcurrencyLimiter("transcode", 1)
            with inner_again:
                assert inner_again.info().used == 1
            assert inner.info().used == 1
        assert inner.info().used == 0

    def test_a_limiter_and_a_lock_of_one_name_are_two_things(self, store):
        with TaskLock("transcode") as lock, ConcurrencyLimiter("transcode", 1) as limiter:
            assert lock.held
            assert limiter.held
            assert current_lock() is lock
            assert current_limiter() is limiter
            assert lock.token != limiter.token
        assert here(current_limiter) is None
        assert not lock.taken
        assert not limiter.taken

    @pytest.mark.parametrize("limit", [0, -1, True, 2.0, "3", None, 10_001])
    def test_a_limit_that_is_none_is_refused(self, limit):
        with pytest.raises(TaskLockError, match="a limit must be a whole number from 1 to 10000"):
            ConcurrencyLimiter("transcode", limit)

    def test_a_cache_is_refused(self, settings):
        settings.TASKLOCK = setting("cache-django-redis")
        with pytest.raises(TaskLockError, match="CacheBackend has no permits"):
            ConcurrencyLimiter("transcode", 3).acquire()


class TestLosing:
    def test_a_member_that_is_removed_is_told_and_its_place_is_free_at_once(self, store):
        """Gold standard 8.43. The others keep theirs."""
        told: list[str] = []
        mine = ConcurrencyLimiter("transcode", 2, lease=3, on_lost=told.append)
        with (
            elsewhere() as run,
            heard(signals.lock_forced) as forced,
            heard(signals.lock_lost, "transcode") as lost,
            mine,
        ):
            other = ConcurrencyLimiter("transcode", 2)
            run(other.acquire)
            members = other.members()
            assert [member.fingerprint for member in members] == [fingerprint(mine.token), members[1].fingerprint]
            removed = other.remove(fingerprint(mine.token))
            assert removed is not None
            assert removed.fingerprint == fingerprint(mine.token)
            assert other.remove(fingerprint(mine.token)) is None
            assert [one["info"] for one in forced] == [removed]
            assert [member.fingerprint for member in other.members()] == [members[1].fingerprint]
            with pytest.raises(LockLost, match="limiter 'transcode' is lost"):
                mine.ensure_held()
            eventually(lambda: told and lost)
            assert [one["lock"] for one in lost] == [mine]
            assert mine.lost
            assert run(lambda: other.held)
            run(other.release)


class TestTelling:
    def test_info_is_for_people(self, store):
        with ConcurrencyLimiter("transcode", 3) as limiter:
            info = limiter.info()
            [member] = info.members
            assert (info.name, info.limit, info.used, info.free, info.waiting) == ("transcode", 3, 1, 2, 0)
            assert limiter.token not in repr(info)
            assert member.fingerprint == fingerprint(limiter.token)
            assert 50 < member.ttl <= 60
            assert 3500 < member.time_left <= 3600
            assert str(limiter) == "<ConcurrencyLimiter 'transcode' held>"

    def test_signals_counts_and_log_lines_are_those_of_locks_and_say_limiter(self, store, caplog):
        caplog.set_level(logging.INFO, "django_tasklock")
        counts.forget()
        with heard(signals.lock_acquired) as acquired, heard(signals.lock_released) as released:
            limiter = ConcurrencyLimiter("transcode", 1)
            with limiter:
                limiter.remove(limiter.members()[0].fingerprint)
            assert [one["lock"] for one in acquired] == [limiter]
            assert [one["outcome"] for one in released] == [Released.GONE]
        assert counts.PERMIT_FORCED in {one.event for one in counts.pending()}
        lines = [record.getMessage() for record in caplog.records]
        assert any(line.startswith("limiter 'transcode' was released by force") for line in lines)
        assert any(line.startswith("limiter 'transcode' was no longer ours when it was released") for line in lines)
        assert not any(line.startswith("lock ") for line in lines)
