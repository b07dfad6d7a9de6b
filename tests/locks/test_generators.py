"""Blocks of locks and permits in generators, which may be closed elsewhere than where their block was entered."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Any

import pytest

from django_tasklock import ConcurrencyLimiter, TaskLock, current_limiter, current_lock, force_release_task_lock
from django_tasklock.types import fingerprint
from tests.support.current import here
from tests.support.public import forked, in_store
from tests.support.stores import stores

KINDS = {
    "lock": lambda: TaskLock("stream"),
    "permit": lambda: ConcurrencyLimiter("stream", 3),
}


@pytest.fixture(params=["memory"])
def store(request, settings) -> Iterator[str]:
    """The name of the store in force, empty."""
    yield from in_store(request.param, settings)


@pytest.fixture(params=KINDS)
def lock(request: Any, store: str) -> Any:
    """A lock or a limiter that all tasks and threads of the test share."""
    return KINDS[request.param]()


@pytest.fixture
def limiter(store: str) -> ConcurrencyLimiter:
    """A limiter that all tasks and threads of the test share."""
    return ConcurrencyLimiter("stream", 3)


def used(lock: Any) -> int:
    """How many hold it."""
    return lock.info().used if isinstance(lock, ConcurrencyLimiter) else int(lock.locked())


async def astream(lock: Any, depth: int = 1) -> AsyncIterator[int]:
    async with lock:
        if depth > 1:
            async with aclosing(astream(lock, depth - 1)) as rows:
                async for number in rows:
                    yield number
        else:
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
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(function(*args))
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    if isinstance(results[0], BaseException):
        raise results[0]
    return results[0]


class TestAsync:
    def test_each_step_in_a_task_of_its_own(self, lock):
        async def main() -> list[int]:
            numbers, rows = [], astream(lock)
            while (number := await in_task(anext(rows, None))) is not None:
                numbers.append(number)
            return numbers

        assert asyncio.run(main()) == [0, 1, 2]
        assert used(lock) == 0

    def test_closed_by_another_task(self, lock):
        async def main() -> None:
            rows = astream(lock)
            await in_task(anext(rows))
            assert used(lock) == 1
            await rows.aclose()

        asyncio.run(main())
        assert used(lock) == 0

    @pytest.mark.parametrize("store", stores("memory"), indirect=True)
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

    def test_the_permit_of_the_closing_task_stays(self, limiter):
        async def main() -> None:
            rows = astream(limiter)
            await in_task(anext(rows))
            async with limiter:
                mine = limiter.token
                await rows.aclose()
                assert used(limiter) == 1
                assert limiter.token == mine
                assert current_limiter() is limiter
                await limiter.aensure_held()

        asyncio.run(main())
        assert used(limiter) == 0

    def test_a_lost_lock_that_another_task_holds_now(self, store):
        async def main() -> None:
            lock = TaskLock("stream")
            rows = astream(lock)
            await in_task(anext(rows))
            assert force_release_task_lock("stream")

            async def worker() -> None:
                async with lock:
                    await in_task(rows.aclose())
                    await lock.aensure_held()
                    assert current_lock() is lock

            await asyncio.create_task(worker())
            assert not lock.locked()

        asyncio.run(main())

    def test_the_lock_around_the_closing_task_stays_the_current_one(self, store):
        async def main() -> None:
            rows = astream(TaskLock("stream"))
            await in_task(anext(rows))
            async with TaskLock("other") as other:
                await rows.aclose()
                assert current_lock() is other
            assert here(current_lock) is None

        asyncio.run(main())


class TestThreads:
    def test_closed_by_another_thread(self, lock):
        rows = stream(lock)
        next(rows)
        in_thread(rows.close)
        assert used(lock) == 0
        assert not lock.taken

    def test_each_step_in_a_thread_of_its_own(self, lock):
        rows = stream(lock)
        assert [in_thread(next, rows, None) for _ in range(4)] == [0, 1, 2, None]
        assert used(lock) == 0

    def test_as_a_context_manager(self, lock):
        """As frameworks run a dependency that yields: each half in a thread of its own."""

        @contextmanager
        def held() -> Iterator[None]:
            with lock:
                yield

        manager = held()
        in_thread(manager.__enter__)
        assert used(lock) == 1
        in_thread(manager.__exit__, None, None, None)
        assert used(lock) == 0

    @pytest.mark.parametrize("opens", [next, partial(in_thread, next)], ids=["entered here", "in a thread"])
    def test_a_child_that_is_forked_inside_leaves_it_to_its_parent(self, lock, opens):
        rows = stream(lock)
        opens(rows)
        forked(rows.close)
        assert used(lock) == 1
        rows.close()
        assert used(lock) == 0

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
