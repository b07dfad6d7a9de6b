"""The block of a lock: it is the current one, ends once, and gives back its own lease wherever it is left.

A generator's block may be left elsewhere than where it was entered: in another thread or asyncio task.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from django_tasklock import (
    ConcurrencyLimiter,
    LockLost,
    Released,
    TaskLock,
    TaskLockAcquireError,
    current_limiter,
    current_lock,
    force_release_task_lock,
    is_task_locked,
    task_lock_context,
)
from django_tasklock.backends import get_backend
from django_tasklock.locks.taken import leases_here
from django_tasklock.types import fingerprint
from tests.support.current import here
from tests.support.public import in_store
from tests.support.stores import an_ask, eventually, granted


@pytest.fixture(params=["memory"])
def store(request, settings) -> Iterator[str]:
    """The name of the store in force, empty."""
    yield from in_store(request.param, settings)


@pytest.fixture
def busy(store) -> str:
    """The token of somebody who has ``video:1``."""
    ask = an_ask("video:1", hold=100_000)
    granted(get_backend().acquire(ask))
    return ask.token


class TestABlock:
    def test_yields_true_is_the_current_lock_and_gives_it_back_also_after_an_error(self, store):
        with pytest.raises(ZeroDivisionError), task_lock_context("task_lock:video:1") as acquired:
            assert acquired is True
            assert is_task_locked("video:1")
            assert current_lock().name == "video:1"
            with task_lock_context("video:2"):
                assert current_lock().name == "video:2"
            assert current_lock().name == "video:1"
            raise ZeroDivisionError
        assert here(current_lock) is None
        assert not is_task_locked("video:1")

    def test_busy_it_raises_who_has_it_or_yields_false(self, busy):
        with pytest.raises(TaskLockAcquireError) as caught, task_lock_context("video:1"):
            raise AssertionError("the body must not run")
        error = caught.value
        assert (error.name, error.holder) == ("video:1", "unknown")
        assert 0 <= error.held_for < 10
        assert 90 < error.time_left <= 100
        assert "'video:1' is held by unknown" in str(error)
        with task_lock_context("video:1", raise_on_fail=False) as acquired:
            assert acquired is False
            assert here(current_lock) is None
        assert get_backend().get("video:1").token == busy

    def test_waits_if_asked_to(self, busy):
        def release():
            eventually(lambda: TaskLock("video:1").info().waiting)
            assert get_backend().release("video:1", busy)
            get_backend().close_idle()

        later = threading.Thread(target=release)
        later.start()
        with task_lock_context("video:1", blocking_timeout=20) as acquired:
            assert acquired is True
        later.join()

    def test_lost_and_taken_again_inside(self, store):
        lock = TaskLock("video:1", reentrant=True)
        with TaskLock("video:2") as around:
            with lock:
                assert force_release_task_lock("video:1")
                with pytest.raises(LockLost):
                    lock.ensure_held()
                with lock:
                    assert lock.held
                assert lock.lost
                assert lock.acquire()
                assert lock.release() is Released.RELEASED
            assert current_lock() is around
        assert here(current_lock) is None
        assert not lock.taken
        assert not is_task_locked("video:1")


class TestOnce:
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


# In a generator


@pytest.fixture(params=[TaskLock, lambda name: ConcurrencyLimiter(name, 3)], ids=["lock", "permit"])
def lock(request: Any, store: str) -> Any:
    """A lock or a limiter that all tasks and threads of the test share."""
    return request.param("stream")


@pytest.fixture
def limiter(store: str) -> ConcurrencyLimiter:
    """A limiter that all tasks and threads of the test share."""
    return ConcurrencyLimiter("stream", 3)


def used(lock: Any) -> int:
    """How many hold it."""
    return lock.info().used if isinstance(lock, ConcurrencyLimiter) else int(lock.locked())


async def astream(lock: Any) -> AsyncIterator[int]:
    async with lock:
        for number in range(3):
            yield number


def stream(lock: Any) -> Iterator[int]:
    with lock:
        yield from range(3)


async def in_task(awaitable: Any) -> Any:
    """Await it in a task of its own, as ``asyncio.wait_for`` does before Python 3.12."""

    async def wait() -> Any:
        return await awaitable

    return await asyncio.create_task(wait())


def in_thread(function: Any, *args: Any) -> Any:
    """Call it in a thread of its own."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *args).result(30)


class TestAsyncGenerators:
    def test_closed_by_another_task(self, lock):
        async def main() -> None:
            rows = astream(lock)
            await in_task(anext(rows))
            assert used(lock) == 1
            async with TaskLock("other") as other:
                await rows.aclose()
                assert current_lock() is other

        asyncio.run(main())
        assert used(lock) == 0

    def test_closed_at_the_end_of_the_loop(self, lock):
        """In Redis it is released as well, but its connection may be closed before, and another one be opened."""
        failed: list[Any] = []
        kept: list[Any] = []

        async def main() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda loop, context: failed.append(context))
            kept.append(astream(lock))
            assert await anext(kept[0]) == 0

        asyncio.run(main())
        assert failed == []
        assert used(lock) == 0

    def test_each_of_several_closes_its_own(self, limiter):
        async def step(rows: AsyncIterator[int]) -> str:
            await anext(rows)
            return fingerprint(limiter.token)

        async def main() -> None:
            many = [astream(limiter) for _ in range(3)]
            members = [await in_task(step(rows)) for rows in many]
            for number in (1, 0, 2):
                assert members[number] in (member.fingerprint for member in limiter.members())
                await many[number].aclose()
                assert members[number] not in (member.fingerprint for member in limiter.members())

        asyncio.run(main())
        assert used(limiter) == 0


class TestGenerators:
    def test_each_step_in_a_thread_of_its_own(self, lock):
        rows = stream(lock)
        assert [in_thread(next, rows, None) for _ in range(4)] == [0, 1, 2, None]
        assert used(lock) == 0

    def test_closed_by_another_thread(self, lock):
        """As frameworks run a dependency that yields."""
        rows = stream(lock)
        next(rows)
        in_thread(rows.close)
        assert used(lock) == 0
        assert not lock.taken

    def test_collected_in_a_thread_that_has_a_permit(self, limiter):
        rows = stream(limiter)
        cycle: list[Any] = [rows]
        cycle.append(cycle)
        in_thread(next, rows)
        del rows
        with limiter:
            mine = limiter.token
            assert used(limiter) == 2
            del cycle
            gc.collect()
            assert used(limiter) == 1
            assert limiter.token == mine
            assert current_limiter() is limiter
            limiter.ensure_held()
        assert used(limiter) == 0
