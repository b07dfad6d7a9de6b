"""``task_lock_context``: a lock for one block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from django_tasklock import (
    LockLost,
    Released,
    TaskLock,
    TaskLockAcquireError,
    TaskLockError,
    current_lock,
    force_release_task_lock,
    is_task_locked,
    task_lock_context,
)
from django_tasklock.backends import get_backend
from django_tasklock.locks.taken import leases_here
from tests.support.current import here
from tests.support.public import forked, in_store
from tests.support.stores import an_ask, granted, stores


@pytest.fixture(params=["memory"])
def store(request, settings) -> Iterator[str]:
    """The name of the store in force, empty."""
    yield from in_store(request.param, settings)


across = pytest.mark.parametrize("store", stores("redis", "database"), indirect=True)


@pytest.fixture
def busy(store) -> str:
    """The token of somebody who has ``video:1``."""
    ask = an_ask("video:1", hold=100_000)
    granted(get_backend().acquire(ask))
    return ask.token


class TestFree:
    def test_yields_true_and_gives_the_lock_back(self, store):
        with task_lock_context("video:1") as acquired:
            assert acquired is True
            assert is_task_locked("video:1")
        assert not is_task_locked("video:1")

    @pytest.mark.parametrize("raise_on_fail", [True, False])
    def test_an_exception_of_the_body_passes_through_and_the_lock_is_given_back(self, store, raise_on_fail):
        with pytest.raises(ZeroDivisionError), task_lock_context("video:1", raise_on_fail):
            raise ZeroDivisionError
        assert not is_task_locked("video:1")

    def test_it_is_the_current_lock(self, store):
        assert here(current_lock) is None
        with task_lock_context("task_lock:video:1"):
            assert current_lock().name == "video:1"
            with task_lock_context("video:2"):
                assert current_lock().name == "video:2"
            assert current_lock().name == "video:1"
        assert here(current_lock) is None


class TestBusy:
    def test_raises_who_has_it_and_for_how_long(self, busy):
        with pytest.raises(TaskLockAcquireError) as caught, task_lock_context("video:1"):
            raise AssertionError("the body must not run")
        error = caught.value
        assert error.name == "video:1"
        assert error.holder == "unknown"
        assert 0 <= error.held_for < 10
        assert 90 < error.time_left <= 100
        assert "'video:1' is held by unknown" in str(error)

    def test_or_yields_false(self, busy):
        with task_lock_context("video:1", raise_on_fail=False) as acquired:
            assert acquired is False
            assert here(current_lock) is None
        assert get_backend().get("video:1").token == busy

    def test_waits_if_asked_to(self, busy):
        def release():
            assert get_backend().release("video:1", busy)
            get_backend().close_idle()

        later = threading.Timer(0.2, release)
        later.start()
        with task_lock_context("video:1", blocking_timeout=20) as acquired:
            assert acquired is True
        later.join()


class TestOnce:
    def test_re_entry_is_refused_with_an_error_that_says_what_to_do(self, store):
        with task_lock_context("video:1"):
            with (
                pytest.raises(TaskLockError, match="already held by this thread.*reentrant=True") as caught,
                task_lock_context("video:1", raise_on_fail=False),
            ):
                raise AssertionError("the body must not run")
            assert not isinstance(caught.value, TaskLockAcquireError)
            assert is_task_locked("video:1")
        assert not is_task_locked("video:1")

    def test_one_object_entered_twice(self, store):
        context = task_lock_context("video:1", reentrant=True)
        with context:
            with context:
                assert is_task_locked("video:1")
            assert is_task_locked("video:1")
        assert not is_task_locked("video:1")

    def test_threads_may_share_one_object(self, store):
        """What one thread met is not what another did: the one that got the lock must give it back."""
        context = task_lock_context("video:1", raise_on_fail=False)
        inside, over = threading.Event(), threading.Event()

        def hold():
            try:
                with context as acquired:
                    inside.set()
                    assert over.wait(20)
                return acquired
            finally:
                get_backend().close_idle()

        with ThreadPoolExecutor(1) as other:
            holder = other.submit(hold)
            assert inside.wait(20)
            for _ in range(3):
                with context as acquired:
                    assert acquired is False
                assert is_task_locked("video:1")
            over.set()
            assert holder.result() is True
        assert not is_task_locked("video:1")
        with context as acquired:
            assert acquired is True

    def test_a_block_may_end_in_another_asyncio_task(self, store):
        """As fixtures of some test frameworks do."""
        context = task_lock_context("video:1")

        async def main():
            await asyncio.create_task(context.__aenter__())
            assert is_task_locked("video:1")
            await asyncio.create_task(context.__aexit__(None, None, None))
            assert not is_task_locked("video:1")

        asyncio.run(main())


def test_a_lock_that_another_thread_released_is_removed_from_its_owner(settings):
    """Gold standard 8.41. Else a thread that takes and never releases grows without bound."""
    for _ in in_store("memory", settings):
        locks = [TaskLock(f"video:{number}") for number in range(50)]
        assert all(lock.acquire() for lock in locks)
        assert len(list(leases_here())) == 50
        with ThreadPoolExecutor(1) as other:
            assert all(other.map(TaskLock.release, locks))
        assert list(leases_here()) == []


def lose(lock: TaskLock) -> None:
    """Take it away from its holder, who learns of it."""
    assert force_release_task_lock(lock.name)
    with pytest.raises(LockLost):
        lock.ensure_held()


class TestTaken:
    """What happens to the lock while the body runs."""

    def test_released_by_force(self, store, caplog):
        with task_lock_context("video:1"):
            assert force_release_task_lock("video:1")
            successor = an_ask("video:1")
            granted(get_backend().acquire(successor))
        assert get_backend().get("video:1").token == successor.token
        assert "no longer ours" in caplog.text

    def test_lost_and_taken_again_inside_of_its_block(self, store):
        lock = TaskLock("video:1", reentrant=True)
        with TaskLock("video:2") as around:
            with lock:
                lose(lock)
                with lock:
                    assert lock.held
                assert lock.lost
                assert lock.acquire()
                assert lock.release() is Released.RELEASED
            assert current_lock() is around
        assert here(current_lock) is None
        assert not lock.taken
        assert not is_task_locked("video:1")

    @across
    def test_a_forked_child_that_leaves_the_block_leaves_the_lock(self, store):
        with task_lock_context("video:1", raise_on_fail=False) as acquired:
            assert acquired
            context = task_lock_context("video:2")
            context.__enter__()

            def child():
                context.__exit__(None, None, None)
                return is_task_locked("video:2"), here(current_lock) is None

            assert forked(child)[0] is True
            assert is_task_locked("video:1")
            assert is_task_locked("video:2")
            context.__exit__(None, None, None)
            assert not is_task_locked("video:2")
