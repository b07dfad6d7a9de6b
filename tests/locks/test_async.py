"""Locks in coroutines: many event loops, many tasks, and tasks that are cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator

import pytest
from asgiref.sync import sync_to_async

from django_tasklock import (
    LockLost,
    Released,
    TaskLock,
    TaskLockAcquireError,
    TaskLockError,
    current_lock,
    is_task_locked,
    task_lock_context,
)
from django_tasklock.backends import get_backend
from tests.support.current import here
from tests.support.public import in_store, raw_redis
from tests.support.stores import an_ask, eventually, granted, stores

SECONDS = 30.0


@pytest.fixture(params=stores("memory", "redis"))
def store(request, settings) -> Iterator[str]:
    """The name of the store in force, empty."""
    yield from in_store(request.param, settings)


def run(main: Callable[..., Awaitable[object]], *args: object) -> object:
    """In an event loop of its own, which must end."""

    async def bounded() -> object:
        return await asyncio.wait_for(main(*args), SECONDS)

    return asyncio.run(bounded())


def is_given_back() -> bool:
    """Whether the lock is free once asgiref's thread has done what it was asked: a call goes on that was cancelled."""
    asyncio.run(sync_to_async(int)())
    return not is_task_locked("video:1")


class TestVerbs:
    def test_the_twins_do_what_the_others_do(self, store):
        async def main():
            lock = TaskLock("video:1", timeout=100)
            assert await lock.ainfo() is None
            assert await lock.aacquire()
            assert lock.held
            assert (await lock.ainfo()).name == "video:1"
            assert await lock.aextend(500)
            assert 490 < (await lock.ainfo()).time_left <= 500
            assert 490 < lock.time_left <= 500
            await lock.aensure_held()
            assert await lock.arelease() is Released.RELEASED
            assert await lock.ainfo() is None
            with pytest.raises(TaskLockError, match="not held"):
                await lock.arelease()

        run(main)

    def test_a_busy_block_raises(self, store):
        granted(get_backend().acquire(an_ask("video:1")))

        async def main():
            with pytest.raises(TaskLockAcquireError, match="'video:1' is held by"):
                async with TaskLock("video:1"):
                    raise AssertionError("the body must not run")
            with pytest.raises(TaskLockAcquireError):
                async with task_lock_context("video:1"):
                    raise AssertionError("the body must not run")

        run(main)
        assert is_task_locked("video:1")

    def test_a_listener_to_a_loss_that_aensure_held_finds_out_may_block_or_fail(self, store):
        async def main():
            told, done = [], threading.Event()

            def listen(reason):
                told.append(threading.get_ident())
                done.set()
                raise RuntimeError("a listener's own trouble")

            async with TaskLock("video:1", on_lost=listen) as lock:
                await sync_to_async(get_backend().remove)("video:1")
                with pytest.raises(LockLost):
                    await lock.aensure_held()
                assert await asyncio.to_thread(done.wait, SECONDS)
            assert told != [threading.get_ident()]

        run(main)


class TestContention:
    def test_one_of_a_hundred_gets_it(self, store):
        async def one(barrier):
            async with task_lock_context("video:1", raise_on_fail=False) as acquired:
                await barrier.wait()  # nobody leaves before all have asked
            return acquired

        async def main():
            barrier = asyncio.Barrier(100)
            return await asyncio.gather(*(one(barrier) for _ in range(100)))

        assert sorted(run(main)) == [False] * 99 + [True]
        assert not is_task_locked("video:1")

    def test_a_hundred_take_turns_each_with_its_own_current_lock(self, store):
        inside, entered = [], []

        async def one(number):
            async with TaskLock("video:1", blocking=True) as lock, TaskLock(f"own:{number}") as own:
                inside.append(number)
                await asyncio.sleep(0)
                assert inside == [number]
                assert (current_lock(), lock.held) == (own, True)
                entered.append(number)
                inside.remove(number)

        async def main():
            await asyncio.gather(*map(one, range(100)))
            assert here(current_lock) is None

        run(main)
        assert sorted(entered) == list(range(100))
        assert not is_task_locked("video:1")


class TestCancellation:
    """Whatever a task is doing when it is cancelled: no key of its own stays behind."""

    def test_at_any_step(self, store):
        async def one(lock):
            assert await lock.aacquire()
            await lock.arelease()

        async def main(steps):
            task = asyncio.create_task(one(TaskLock("video:1")))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        for steps in range(24):
            run(main, steps)
            eventually(is_given_back)


class TestLoops:
    def test_a_lock_outlives_the_loop_it_was_taken_in(self, store):
        """As when a view takes it and a later request gives it back: its heartbeat is no coroutine."""
        lock = TaskLock("video:1", lease=4)
        assert run(lock.aacquire)
        before = lock.lease.deadline
        eventually(lambda: lock.lease.deadline > before)
        assert is_task_locked("video:1")
        assert run(lock.arelease) is Released.RELEASED
        assert not is_task_locked("video:1")

    @pytest.mark.parametrize("store", stores("redis"), indirect=True)
    def test_forty_loops_keep_no_connection(self, store):
        async def main():
            async with TaskLock("video:1"):
                pass

        with raw_redis() as client:
            before = client.info("clients")["connected_clients"]
            for _ in range(40):
                run(main)
            eventually(lambda: client.info("clients")["connected_clients"] <= before + 2)
