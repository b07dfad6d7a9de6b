"""``take`` and ``give``: a lease is a value in its taker's hand."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from django_tasklock import (
    BackendUnavailable,
    ConcurrencyLimiter,
    TaskLock,
    TaskLockError,
    current_limiter,
    current_lock,
    is_task_locked,
)
from django_tasklock.backends import get_backend
from django_tasklock.backends.contract.stores import Waiter
from django_tasklock.host import Task
from django_tasklock.locks import acquire as acquiring, lock as locks
from django_tasklock.locks.lease import Lease, Refusal
from django_tasklock.types import AcquireRequest, Busy, Grant, Released
from tests.support.public import in_store
from tests.support.stores import an_ask, eventually, stores


@pytest.fixture(params=["memory"])
def store(request: Any, settings: Any) -> Iterator[str]:
    """The name of the store in force, empty."""
    yield from in_store(request.param, settings)


def taken(answer: Lease | Refusal) -> Lease:
    """The lease, of a lock that was free."""
    assert isinstance(answer, Lease)
    return answer


class TestALease:
    def test_whoever_has_it_may_give_it(self, store: str) -> None:
        lock = TaskLock("video:1")
        lease = taken(lock.take())
        with ThreadPoolExecutor(1) as other:
            assert other.submit(lock.give, lease).result(20) is Released.RELEASED
        assert not is_task_locked("video:1")

    def test_each_of_several_of_one_object_is_its_own(self, store: str) -> None:
        limiter = ConcurrencyLimiter("transcode", 2)
        mine = taken(limiter.take())
        with ThreadPoolExecutor(1) as other:
            theirs = taken(other.submit(limiter.take).result(20))
            assert theirs.token != mine.token
            assert limiter.give(theirs) is Released.RELEASED
            assert [limiter.info().used, limiter.held] == [1, True]
            assert other.submit(limiter.give, mine).result(20) is Released.RELEASED

    def test_of_a_coroutine(self, store: str) -> None:
        async def main() -> None:
            lock = TaskLock("video:1")
            lease = taken(await lock.atake())
            assert isinstance(await asyncio.create_task(lock.atake(0)), Refusal)
            assert await lock.agive(lease) is Released.RELEASED

        asyncio.run(main())
        assert not is_task_locked("video:1")

    def test_may_replace_one_whose_token_is_known(self, store: str) -> None:
        lock = TaskLock("video:1")
        with ThreadPoolExecutor(1) as other:
            before = taken(other.submit(lock.take).result(20))
            assert isinstance(lock.take(0, supersedes="another"), Refusal)
            after = taken(lock.take(0, supersedes=before.token))
            assert after.token != before.token
            assert lock.give(before) is Released.NOT_YOURS
            assert lock.give(after) is Released.RELEASED

    @pytest.mark.parametrize("store", stores("redis"), indirect=True)
    def test_flags_are_cleared_with_the_release(self, store: str) -> None:
        lock = TaskLock("video:1")
        get_backend().set_flag("one")
        outcome, flagged = lock.give_and_clear(taken(lock.take()), ("one", "two"))
        assert (outcome, flagged) == (Released.RELEASED, frozenset({"one"}))
        assert lock.give_and_clear(taken(lock.take()), ("one", "two"))[1] == frozenset()

    def test_re_entry_is_counted(self, store: str) -> None:
        lock = TaskLock("video:1", reentrant=True)
        lease = taken(lock.take())
        assert lock.take() is lease
        assert lock.give(lease)
        assert is_task_locked("video:1")
        assert lock.give(lease) is Released.RELEASED
        assert not is_task_locked("video:1")
        once = TaskLock("video:2")
        lease = taken(once.take())
        with pytest.raises(TaskLockError, match="already held by this thread"):
            once.take()
        assert once.give(lease)

    def test_says_who_has_it(self, store: str) -> None:
        lock = TaskLock("video:1", task=Task("transcode", "one"), row="videos.video:1", kind="video:{id}")
        lease = taken(lock.take())
        record = get_backend().get("video:1")
        assert record is not None
        assert record.token == lease.token
        assert (record.holder.task_id, record.holder.row, record.holder.kind) == ("one", "videos.video:1", "video:{id}")


class TestARefusal:
    def test_names_the_holder(self, store: str) -> None:
        lock = TaskLock("video:1")
        with ThreadPoolExecutor(1) as other:
            lease = taken(other.submit(lock.take).result(20))
            for wait in (0, 0.05):
                refused = lock.take(wait)
                assert isinstance(refused, Refusal)
                assert refused.record is not None
                assert refused.record.token == lease.token
                assert "is held by" in str(refused.error)

    def test_where_the_store_is_down_says_why(self, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
        def down(*what: object) -> None:
            raise BackendUnavailable("no answer", doubt=False)

        monkeypatch.setattr(get_backend(), "acquire", down)
        refused = TaskLock("video:1", on_unavailable="skip").take()
        assert isinstance(refused, Refusal)
        assert isinstance(refused.error.__cause__, BackendUnavailable)
        lease = taken(TaskLock("video:1", on_unavailable="run").take())
        assert lease.without_lock


class TestTooLate:
    """What the store says counts from when it was asked, and not from when it is heard."""

    @pytest.mark.parametrize("store", stores("memory"), indirect=True)
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

    @pytest.mark.parametrize("store", stores("memory"), indirect=True)
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
        sent, answer, _ = acquiring.acquire_within(backend, an_ask("video:1"), 60)
        assert (sent, answer) == (1002.0, Grant(2, 3000))


class TestABlock:
    @pytest.mark.parametrize(
        ("kind", "current"), [(TaskLock, current_lock), (lambda name: ConcurrencyLimiter(name, 1), current_limiter)]
    )
    def test_is_the_current_one_and_releases_nothing(self, store: str, kind: Any, current: Any) -> None:
        lock = kind("video:1")
        lease = taken(lock.take())
        with lock.block(lease):
            assert current() is lock
            assert current().held
        with pytest.raises(TaskLockError, match="current here"):
            current()
        assert lock.held
        assert lock.give(lease) is Released.RELEASED
