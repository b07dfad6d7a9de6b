"""Whose lock it is: who was refused has nothing, and neither threads nor asyncio tasks are mistaken for each other.

A lease is a value in its taker's hand, and what the store granted too late is none.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from asgiref.sync import async_to_sync, sync_to_async

from django_tasklock import (
    BackendUnavailable,
    ConcurrencyLimiter,
    LockLost,
    Released,
    TaskLock,
    TaskLockError,
    is_task_locked,
)
from django_tasklock.backends import get_backend
from django_tasklock.backends.contract.stores import Waiter
from django_tasklock.host import Task
from django_tasklock.locks import acquire as acquiring, lock as locks
from django_tasklock.locks.lease import Lease, Refusal
from django_tasklock.types import AcquireRequest, Busy, Grant
from tests.support.public import in_store
from tests.support.stores import an_ask, end_lease, eventually


@pytest.fixture(params=["memory"])
def store(request, settings) -> Iterator[str]:
    """The name of the store in force, empty."""
    yield from in_store(request.param, settings)


def has_nothing(lock: TaskLock) -> None:
    """And cannot do harm with it."""
    assert (lock.held, lock.taken, lock.lost) == (False, False, False)
    for verb in (lock.ensure_held, lock.release, lock.extend):
        with pytest.raises(TaskLockError, match="is not held through this object"):
            verb()
    assert is_task_locked(lock.name)


class TestWhoWasRefused:
    """Bug 2 of the reference: a path that never took the lock releases it."""

    def test_two_objects_of_one_name(self, store):
        """redis-py's ``test_owned``."""
        first, second = TaskLock("video:1"), TaskLock("video:1")
        assert first.acquire()
        assert first.held
        has_nothing(second)
        with pytest.raises(TaskLockError, match="already held by this thread"):
            second.acquire()
        has_nothing(second)
        assert first.release() is Released.RELEASED
        assert not first.held

    def test_threads_that_share_an_object(self, store):
        lock = TaskLock("video:1")
        with ThreadPoolExecutor(1) as other:
            assert other.submit(lock.acquire).result(20)
            assert lock.acquire() is False
            has_nothing(lock)
            assert other.submit(lambda: lock.held).result(20)
            assert other.submit(lock.release).result(20) is Released.RELEASED

    def test_asyncio_tasks_that_share_an_object(self, store):
        lock = TaskLock("video:1")

        async def refused():
            assert await lock.aacquire() is False
            assert not lock.held
            for verb in (lock.aensure_held, lock.arelease, sync_to_async(lock.release)):
                with pytest.raises(TaskLockError, match="is not held through this object"):
                    await verb()

        async def refused_in_a_thread():
            assert await sync_to_async(lock.acquire)() is False
            for verb in (lock.arelease, sync_to_async(lock.release)):
                with pytest.raises(TaskLockError, match="is not held through this object"):
                    await verb()

        async def main():
            assert await lock.aacquire()
            await asyncio.create_task(refused())
            await asyncio.create_task(refused_in_a_thread())
            assert lock.held
            assert await lock.arelease() is Released.RELEASED

        asyncio.run(main())

    def test_a_release_too_many_of_who_re_entered(self, store):
        outer, inner = TaskLock("video:1", reentrant=True), TaskLock("video:1", reentrant=True)
        assert outer.acquire()
        assert inner.acquire()
        assert inner.release()
        has_nothing(inner)
        assert outer.held
        assert outer.release() is Released.RELEASED
        assert not is_task_locked("video:1")

    def test_a_lost_lock_does_not_release_a_later_one_of_the_same_thread(self, store):
        lost, later = TaskLock("video:1"), TaskLock("video:1")
        assert lost.acquire()
        assert get_backend().remove("video:1") is not None
        lost.require_lease().checked_at = 0.0
        with pytest.raises(LockLost):
            lost.ensure_held()
        assert later.acquire()
        assert lost.release() is Released.NOT_YOURS
        assert later.held
        assert later.release() is Released.RELEASED

    def test_an_object_whose_lock_is_lost_again_and_again_does_not_keep_all_its_leases(self, store):
        lock, leases = TaskLock("video:1", timeout=60, lease=None), weakref.WeakSet[Lease]()
        for _ in range(200):
            assert lock.acquire()
            leases.add(lock.require_lease())
            end_lease(lock)
        assert len(leases) < 50
        assert lock.release() is Released.GONE


class TestCalls:
    """What runs for a coroutine in a thread: the thread serves many, and is nobody."""

    @pytest.mark.parametrize("through", [sync_to_async, lambda call: lambda: asyncio.to_thread(call)])
    def test_of_three_tasks_one_is_let_in(self, store, through):
        inside = []

        async def one(number, barrier):
            lock = TaskLock("video:1", reentrant=True)
            if taken := await through(lock.acquire)():
                inside.append(number)
            await barrier.wait()
            if taken:
                assert await through(lock.release)() is Released.RELEASED

        async def main():
            barrier = asyncio.Barrier(3)
            await asyncio.gather(*(one(number, barrier) for number in range(3)))

        asyncio.run(main())
        assert len(inside) == 1
        assert not is_task_locked("video:1")

    def test_a_task_that_the_holder_starts_cannot_release_its_permit(self, store):
        """The task has the answers of the code that started it in its context, and runs beside that."""

        async def child(limiter):
            assert (limiter.held, limiter.taken) == (False, False)
            with pytest.raises(TaskLockError, match="is not held through this object"):
                await limiter.arelease()

        async def main():
            limiter = ConcurrencyLimiter("transcode", 1)
            async with limiter:
                await asyncio.create_task(child(limiter))
                assert limiter.held
                assert limiter.info().used == 1

        asyncio.run(main())

    def test_a_task_that_the_holder_starts_is_another(self, store):
        def within():
            return async_to_sync(TaskLock("video:1", reentrant=True).aacquire)()

        async def child():
            assert await TaskLock("video:1", reentrant=True).aacquire() is False
            assert await sync_to_async(TaskLock("video:1", reentrant=True).acquire)() is False
            assert await sync_to_async(within)() is False

        async def children():
            await asyncio.gather(child(), child())

        async def main():
            lock = TaskLock("video:1")
            for acquire in (lock.aacquire, sync_to_async(lock.acquire)):
                assert await acquire()
                await children()
                assert await lock.arelease()

        asyncio.run(main())
        with TaskLock("video:1"):
            async_to_sync(children)()

    def test_within_one_call_it_is_the_same_holder(self, store):
        def call():
            with TaskLock("video:1", reentrant=True), TaskLock("video:1", reentrant=True) as inner:
                return inner.held

        async def main():
            assert await sync_to_async(call)()
            assert await asyncio.to_thread(call)

        asyncio.run(main())
        assert not is_task_locked("video:1")


class TestSynchronousCallers:
    """``async_to_sync``: the caller waits for the coroutine, which so has what the caller has."""

    def test_the_coroutine_has_what_its_caller_has(self, store):
        async def main():
            with pytest.raises(TaskLockError, match="already held"):
                await TaskLock("video:1").aacquire()
            async with TaskLock("video:1", reentrant=True) as inner:
                assert inner.held
                assert inner.fence == lock.fence
            await lock.aensure_held()

        lock = TaskLock("video:1")
        with lock:
            for _ in range(3):
                async_to_sync(main)()
            assert lock.held
        assert not is_task_locked("video:1")

    def test_the_caller_is_itself_again_afterwards(self, store):
        """asgiref brings back the context of what it called."""

        def call():
            assert TaskLock("video:2").acquire()  # and leaves it

        async def main():
            await sync_to_async(call)()

        lock = TaskLock("video:1", reentrant=True)
        with lock:
            async_to_sync(main)()
            with TaskLock("video:1", reentrant=True) as inner:
                assert inner.fence == lock.fence
            async_to_sync(self.enters)()
        assert not is_task_locked("video:1")

    async def enters(self):
        async with TaskLock("video:1", reentrant=True) as inner:
            assert inner.held

    def test_a_call_of_a_coroutine_is_a_caller_as_well(self, store):
        def call():
            with TaskLock("video:1"):
                async_to_sync(self.enters)()

        async def main():
            await sync_to_async(call)()

        asyncio.run(main())
        async_to_sync(main)()
        assert not is_task_locked("video:1")


def taken(answer: Lease | Refusal) -> Lease:
    """The lease, of a lock that was free."""
    assert isinstance(answer, Lease)
    return answer


class TestALease:
    def test_may_replace_one_whose_token_is_known(self, store: str) -> None:
        lock = TaskLock("video:1")
        with ThreadPoolExecutor(1) as other:
            before = taken(other.submit(lock.take).result(20))
            assert isinstance(lock.take(0, supersedes="another"), Refusal)
            after = taken(lock.take(0, supersedes=before.token))
            assert after.token != before.token
            assert lock.give(before) is Released.NOT_YOURS
            assert lock.give(after) is Released.RELEASED

    def test_says_who_has_it(self, store: str) -> None:
        lock = TaskLock("video:1", task=Task("transcode", "one"), row="videos.video:1", kind="video:{id}")
        lease = taken(lock.take())
        record = get_backend().get("video:1")
        assert record is not None
        assert record.token == lease.token
        assert (record.holder.task_id, record.holder.row, record.holder.kind) == ("one", "videos.video:1", "video:{id}")


class TestTooLate:
    """What the store says counts from when it was asked, and not from when it is heard."""

    def test_a_grant_that_is_heard_after_its_lease_is_none(self, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
        backend, late = get_backend(), [0.0]
        acquire, monotonic = backend.acquire, locks.monotonic

        def slow(request: AcquireRequest) -> Grant | Busy:
            late[0] = 60.0
            return acquire(request)

        monkeypatch.setattr(backend, "acquire", slow)
        monkeypatch.setattr(locks, "monotonic", lambda: monotonic() + late[0])
        lock = TaskLock("video:1", lease=30, on_unavailable="run")
        with pytest.raises(BackendUnavailable, match="after the lease was over") as caught:
            lock.acquire()
        assert not caught.value.down
        assert not lock.taken
        eventually(lambda: not is_task_locked("video:1"))

    def test_a_lock_that_was_handed_over_long_ago_is_asked_for_again(
        self, store: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As to a waiter in a process that was stopped: meanwhile others had it."""
        clock, asked = [1000.0], []

        class Stopped(Waiter):
            def acquire(self) -> Grant | Busy:
                asked.append(clock[0])
                return Busy(None) if len(asked) == 1 else Grant(2, 3000)

            def wait(self, seconds: float) -> Grant | None:
                clock[0] += 2.0
                return Grant(1, 3000)

        backend = get_backend()
        monkeypatch.setattr(acquiring, "monotonic", lambda: clock[0])
        monkeypatch.setattr(backend, "waiter", lambda request: Stopped(backend, request))
        sent, answer, _ = acquiring.acquire_within(backend, an_ask("video:1"), 60, lambda busy: False)
        assert (sent, answer) == (1002.0, Grant(2, 3000))
