"""Locks in coroutines: many event loops, many tasks, and tasks that are cancelled."""

from __future__ import annotations

import asyncio
import inspect
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
    task_lock,
    task_lock_context,
)
from django_tasklock.backends import get_backend
from tests.support.current import here
from tests.support.public import in_store, raw_redis, script
from tests.support.stores import LISTING, an_ask, eventually, granted, stores

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


async def until(condition: Callable[[], object]) -> None:
    """Wait for it, a coroutine's answer or a plain one, without blocking the loop."""
    while True:
        answer = condition()
        if await answer if inspect.isawaitable(answer) else answer:
            return
        await asyncio.sleep(0.005)


def is_given_back() -> bool:
    """Whether the lock is free once asgiref's thread has done what it was asked: a call goes on that was cancelled."""
    asyncio.run(sync_to_async(int)())
    return not is_task_locked("video:1")


async def locked(name: str) -> bool:
    """Whether anybody has it, asked without blocking the loop."""
    return await TaskLock(name).ainfo() is not None


class TestVerbs:
    def test_the_twins_do_what_the_others_do(self, store):
        async def main():
            lock = TaskLock("video:1", timeout=100)
            assert not await locked("video:1")
            assert await lock.aacquire()
            assert lock.held
            assert lock.fence > 0
            info = await lock.ainfo()
            assert info.name == "video:1"
            assert await TaskLock("video:2").ainfo() is None
            assert await lock.aextend(500)
            assert 490 < (await lock.ainfo()).time_left <= 500
            assert 490 < lock.time_left <= 500
            assert await lock.arelease() is Released.RELEASED
            assert not await locked("video:1")
            with pytest.raises(TaskLockError, match="not held"):
                await lock.arelease()

        run(main)

    def test_a_block(self, store):
        async def main():
            async with TaskLock("video:1") as lock:
                assert current_lock() is lock
                assert lock.held
                await asyncio.sleep(0)
                assert await locked("video:1")
            assert here(current_lock) is None
            assert not await locked("video:1")

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
            async with task_lock_context("video:1", raise_on_fail=False) as acquired:
                assert acquired is False

        run(main)
        assert is_task_locked("video:1")


class TestListeners:
    """They may block, ask the database, or fail: whoever finds the loss out does none of that."""

    def test_of_a_loss_that_aensure_held_finds_out(self, store):
        async def main():
            told, done = [], threading.Event()

            def listen(reason):
                told.append(threading.get_ident())
                done.set()
                raise RuntimeError("a listener's own trouble")

            async with TaskLock("video:1", on_lost=listen) as lock:
                await sync_to_async(get_backend().remove)("video:1")
                lock.lease.checked_at = 0.0
                with pytest.raises(LockLost):
                    await lock.aensure_held()
                await until(done.is_set)
            assert told != [threading.get_ident()]
            assert len(told) == 1

        run(main)


class TestHolders:
    """A lock belongs to an asyncio task as it belongs to a thread."""

    def test_each_task_sees_its_own_current_lock(self, store):
        async def one(name):
            async with TaskLock(name):
                for _ in range(3):
                    await asyncio.sleep(0)
                    assert current_lock().name == name

        async def main():
            await asyncio.gather(*(one(f"video:{number}") for number in range(5)))
            assert here(current_lock) is None

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

    def test_a_hundred_take_turns(self, store):
        tasks = 20 if store == "database" else 100  # which polls
        inside, entered = [], []

        async def one(number):
            async with TaskLock("video:1", blocking=True):
                inside.append(number)
                await asyncio.sleep(0)
                assert inside == [number]
                entered.append(number)
                inside.remove(number)

        async def main():
            await asyncio.gather(*map(one, range(tasks)))

        run(main)
        assert sorted(entered) == list(range(tasks))
        assert not is_task_locked("video:1")


class TestCancellation:
    """Whatever a task is doing when it is cancelled: no key of its own stays behind."""

    @pytest.mark.parametrize("store", stores("database"), indirect=True)
    def test_while_a_thread_still_asks_the_store_for_it(self, store, monkeypatch):
        """The thread goes on; what it is granted then must be given back."""
        backend = get_backend()
        asking, goes_on, granted_late = threading.Event(), threading.Event(), threading.Event()
        acquire = backend.acquire

        def slow(ask):
            asking.set()
            assert goes_on.wait(SECONDS)
            answer = acquire(ask)
            granted_late.set()
            return answer

        monkeypatch.setattr(backend, "acquire", slow)

        async def main():
            task = asyncio.create_task(TaskLock("video:1", lease=None).aacquire())
            await until(asking.is_set)
            task.cancel()
            threading.Timer(0.7, goes_on.set).start()
            with pytest.raises(asyncio.CancelledError):
                await task

        run(main)
        assert granted_late.wait(SECONDS)
        eventually(is_given_back)

    @pytest.mark.parametrize("steps", range(8))
    def test_while_acquiring(self, store, steps):
        async def main():
            task = asyncio.create_task(TaskLock("video:1").aacquire())
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                return False
            return True

        if not run(main):
            eventually(is_given_back)

    def test_in_the_body(self, store):
        async def holder(entered):
            async with task_lock_context("video:1"):
                entered.set()
                await asyncio.Event().wait()

        async def main():
            entered = asyncio.Event()
            task = asyncio.create_task(holder(entered))
            await entered.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not await locked("video:1")

        run(main)

    def test_while_waiting(self, store):
        async def waiters():
            return (await TaskLock("video:1").ainfo()).waiting

        async def one_waits():
            return await waiters() == 1

        async def none_waits():
            return await waiters() == 0

        async def main():
            async with TaskLock("video:1"):
                waiting = asyncio.create_task(TaskLock("video:1", blocking=True).aacquire())
                if store == "database":  # which polls, and knows of no queue
                    await asyncio.sleep(0.1)
                else:
                    await until(one_waits)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                await until(none_waits)
            assert await TaskLock("video:1").aacquire()

        run(main)

    def test_while_releasing(self, store):
        async def one(lock):
            assert await lock.aacquire()
            await lock.arelease()

        async def main(steps):
            task = asyncio.create_task(one(TaskLock("video:1")))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        for steps in range(0, 24, 3):
            run(main, steps)
            eventually(is_given_back)

    def test_of_some_of_many_hurts_no_other(self, store):
        tasks = 10 if store == "database" else 40
        done = []

        async def one(number):
            async with TaskLock("video:1", blocking=True):
                await asyncio.sleep(0.002)
                done.append(number)

        async def main():
            running = [asyncio.create_task(one(number)) for number in range(tasks)]
            await asyncio.sleep(0.02)
            for task in running[::2]:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

        run(main)
        assert set(range(1, tasks, 2)) <= set(done)
        eventually(is_given_back)


class TestDecorated:
    def test_a_coroutine_function_runs_once_at_a_time(self, store):
        @task_lock("video:{video_id}")
        async def process(video_id, barrier):
            await barrier.wait()
            return current_lock().name

        async def main():
            barrier = asyncio.Barrier(2)
            first = asyncio.create_task(process(1, barrier))
            await until(lambda: locked("video:1"))
            skipped = await process(1, barrier)
            await barrier.wait()
            return await first, skipped

        name, skipped = run(main)
        assert name == "video:1"
        assert (skipped["status"], skipped["reason"], skipped["name"]) == ("skipped", "already_processing", "video:1")
        assert not is_task_locked("video:1")


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


LOOPS = """
import asyncio, gc, logging, os
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
import django
django.setup()
from asgiref.sync import async_to_sync, sync_to_async
logging.getLogger("asyncio").setLevel("ERROR")  # it also says what was slow
from django.conf import settings
from tests.support.public import setting
settings.TASKLOCK = setting({store!r})
from django_tasklock import TaskLock, task_lock, task_lock_context

@task_lock("loops:{{number}}")
async def decorated(number):
    await asyncio.sleep(0)

async def one(number):
    async with TaskLock("loops", blocking=True):
        await asyncio.sleep(0)
    async with task_lock_context(f"loops:{{number}}", raise_on_fail=False):
        await asyncio.sleep(0)
    await decorated(number)

async def cancelled():
    async with TaskLock("loops"):
        waiting = asyncio.create_task(TaskLock("loops", blocking=True).aacquire())
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

async def main():
    await asyncio.gather(*map(one, range(5)))
    await cancelled()

for _ in range(5):
    asyncio.run(main())
    async_to_sync(main)()
    gc.collect()

# A connection to the database belongs to its thread, not to a loop: here as in any script.
from django.db import connections
close = sync_to_async(connections.close_all)
asyncio.run(close())
async_to_sync(close)()
print("fine")
"""


@pytest.mark.slow
@pytest.mark.parametrize("store", stores(*LISTING), indirect=True)
def test_no_loop_leaves_a_connection_for_the_garbage_collector(store):
    """In development mode, where that is a ResourceWarning, and every warning an error."""
    assert script(LOOPS.format(store=store), "-X", "dev") == "fine\n"
