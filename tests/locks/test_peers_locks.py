"""What users of other locks rely on: the cases of redis-py's and python-redis-lock's own tests, as behaviour.

Where we differ on purpose, the case stands in ``TestDifferences`` with its reason, and in docs/comparison.md.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from django_tasklock import LockLost, TaskLock, TaskLockAcquireError, TaskLockError, force_release_task_lock
from django_tasklock.backends import get_backend
from django_tasklock.locks.heartbeat import heartbeat
from django_tasklock.testing import forget
from django_tasklock.types import Released
from tests.support.guards import elsewhere
from tests.support.public import in_store, raw_redis
from tests.support.stores import LISTING, an_ask, clear, eventually, granted, renewed, stores

pytest_plugins = ["tests.support.worker_fixtures"]


@pytest.fixture(params=stores(*LISTING))
def store(request: Any, settings: Any) -> Iterator[str]:
    """The name of the store in force, empty."""
    yield from in_store(request.param, settings)


on_redis = pytest.mark.parametrize("store", stores("redis"), indirect=True)


def lock(**options: Any) -> TaskLock:
    return TaskLock("foo", **options)


def left() -> float:
    """Seconds that the key in Redis has left."""
    with raw_redis() as client:
        return client.pttl("task_lock:foo") / 1000  # type: ignore[operator]


def taken_by_other_means() -> str:
    """The lock is somebody else's now, whoever thinks that he has it: its token."""
    force_release_task_lock("foo")
    ask = an_ask("foo")
    granted(get_backend().acquire(ask))
    return ask.token


class TestTaking:
    def test_taken_and_given_back(self, store: str) -> None:
        mine = lock()
        assert mine.acquire(blocking=False)
        assert mine.locked()
        assert get_backend().get("foo").token == mine.token
        mine.release()
        assert not mine.locked()
        assert get_backend().get("foo") is None

    def test_two_objects_compete(self, store: str) -> None:
        first, second = lock(), lock()
        assert first.acquire(blocking=False)
        assert not elsewhere(second.acquire)
        first.release()
        assert second.acquire(blocking=False)
        assert not elsewhere(first.acquire)
        second.release()

    def test_owned(self, store: str) -> None:
        """redis-py: ``test_owned``. Gold standard 8.2."""
        first, second = lock(), lock()
        assert not first.held
        assert first.acquire(blocking=False)
        assert first.held
        assert not second.held
        first.release()
        assert not first.held
        assert second.acquire(blocking=False)
        assert not first.held
        assert second.held
        second.release()

    def test_a_token_is_new_each_time(self, store: str) -> None:
        mine, seen = lock(), set()
        for _ in range(3):
            with mine:
                seen.add(mine.token)
        assert len(seen) == 3

    @pytest.mark.parametrize("lease", [10, 9.5])
    @on_redis
    def test_it_ends_by_itself(self, store: str, lease: float) -> None:
        with lock(lease=lease):
            assert 8 < left() <= lease

    def test_it_waits_no_longer_than_told(self, store: str) -> None:
        granted(get_backend().acquire(an_ask("foo")))
        assert not lock(blocking_timeout=0.2).acquire()
        assert not lock().acquire(blocking_timeout=0.2)
        assert not lock().acquire(blocking=False)

    def test_it_is_had_when_the_other_ends(self, store: str) -> None:
        """python-redis-lock: ``test_timeout_expire``."""
        granted(get_backend().acquire(an_ask("foo", ttl=300, hold=300)))
        second = lock(blocking_timeout=20)
        assert second.acquire()
        second.release()

    def test_a_lock_that_is_renewed_is_not_had(self, store: str) -> None:
        """python-redis-lock: ``test_timeout_expire_with_renewal``."""
        with lock(lease=3) as first:
            renewed("foo")
            assert not elsewhere(lock(blocking=False).acquire)
            first.ensure_held()

    @pytest.mark.parametrize("seconds", [0, -1])
    def test_a_wait_that_cannot_be_is_refused(self, store: str, seconds: int) -> None:
        with pytest.raises(TaskLockError):
            lock(timeout=seconds)
        with pytest.raises(TaskLockError):
            lock().acquire(blocking=True, blocking_timeout=-1)

    def test_waiting_and_not_waiting_do_not_go_together(self, store: str) -> None:
        with pytest.raises(TaskLockError, match="blocking"):
            lock().acquire(blocking=False, blocking_timeout=1)

    def test_twice_by_one_and_the_same(self, store: str) -> None:
        """python-redis-lock: ``test_double_acquire``."""
        with lock() as mine:
            with pytest.raises(TaskLockError, match="already held"):
                mine.acquire()
            assert mine.held
        assert not mine.locked()


class TestBlocks:
    def test_it_has_the_lock_inside_and_not_outside(self, store: str) -> None:
        with lock(blocking_timeout=5) as mine:
            assert get_backend().get("foo").token == mine.token
        assert get_backend().get("foo") is None

    def test_busy(self, store: str) -> None:
        token = taken_by_other_means()
        with pytest.raises(TaskLockAcquireError), lock(blocking_timeout=0.1):
            pytest.fail("not its turn")
        assert get_backend().get("foo").token == token

    def test_lost_inside(self, store: str) -> None:
        """The block ends without an error, and the next holder keeps its lock."""
        with lock():
            token = taken_by_other_means()
        assert get_backend().get("foo").token == token

    def test_released_inside(self, store: str) -> None:
        """The end of the block does nothing more, also not to the next holder."""
        with lock() as mine:
            mine.release()
            token = taken_by_other_means()
        assert get_backend().get("foo").token == token


class TestGivingBack:
    def test_what_was_never_taken(self, store: str) -> None:
        with pytest.raises(TaskLockError, match="acquire"):
            lock().release()

    def test_what_was_refused(self, store: str) -> None:
        """Gold standard 8.2: a path that never took the lock releases it."""
        token = taken_by_other_means()
        mine = lock()
        assert not mine.acquire()
        with pytest.raises(TaskLockError):
            mine.release()
        assert get_backend().get("foo").token == token

    def test_what_is_somebody_elses_by_now(self, store: str) -> None:
        """It is told, by what ``release`` returns, and nothing is remembered."""
        mine = lock()
        assert mine.acquire()
        token = taken_by_other_means()
        assert mine.release() is Released.NOT_YOURS
        assert not mine.held
        assert get_backend().get("foo").token == token
        with pytest.raises(TaskLockError):
            mine.release()

    def test_what_was_reset(self, store: str) -> None:
        """python-redis-lock: ``test_reset``. ``Released.GONE`` is false."""
        mine = lock()
        assert mine.acquire()
        force_release_task_lock("foo")
        assert mine.release() is Released.GONE
        assert not Released.GONE

    def test_who_waits_hears_of_a_forced_release(self, store: str) -> None:
        """python-redis-lock: ``test_reset_signalizes``."""
        taken_by_other_means()
        waiter = lock(blocking_timeout=30)

        def wait() -> bool:
            return waiter.acquire() and bool(waiter.release())

        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(elsewhere, wait)
            force_release_task_lock("foo")
            assert waiting.result(60) is True

    @on_redis
    def test_nothing_is_left_that_grows(self, store: str) -> None:
        """python-redis-lock: ``test_signal_cleanup_on_release``. What stays is what all locks share, and the fence."""
        with lock():
            pass
        with raw_redis() as client:
            found = {key for key in client.scan_iter() if "#counts:" not in key and key != "task_lock#hours"}
        assert found <= {"task_lock#fence", "task_lock#fence:foo"}


class TestExtending:
    @on_redis
    def test_from_now_on(self, store: str) -> None:
        with lock(timeout=10, lease=None) as mine:
            assert mine.extend(20)
            assert 18 < left() <= 20
            assert mine.extend()  # redis-py's ``reacquire``
            assert 8 < left() <= 10
            assert mine.extend(12.5)
            assert 10 < left() <= 12.5

    def test_what_was_never_taken(self, store: str) -> None:
        with pytest.raises(TaskLockError):
            lock().extend(10)

    def test_what_is_somebody_elses_by_now(self, store: str) -> None:
        mine = lock()
        assert mine.acquire()
        token = taken_by_other_means()
        assert mine.extend(10) is False
        with pytest.raises(LockLost):
            mine.ensure_held()
        assert get_backend().get("foo").token == token

    def test_by_another_object(self, store: str) -> None:
        """python-redis-lock: ``test_extend_another_instance_different_id_fail``."""
        with lock() as mine:
            with pytest.raises(TaskLockError):
                elsewhere(lambda: lock().extend(1000))
            mine.ensure_held()


class TestRenewing:
    def test_plain_locks_have_no_heartbeat(self, store: str) -> None:
        with lock(lease=None):
            assert len(heartbeat) == 0

    def test_it_goes_on_for_as_long_as_the_body(self, store: str) -> None:
        with lock(lease=3):
            renewed("foo")
            assert len(heartbeat) == 1
        assert len(heartbeat) == 0

    def test_not_longer_than_the_object(self, store: str) -> None:
        """python-redis-lock: ``test_auto_renewal_stops_after_gc``."""
        mine = lock(lease=2)
        assert mine.acquire()
        gone = weakref.ref(mine)
        del mine
        forget()  # nobody else in this process remembers it
        gc.collect()
        assert gone() is None
        eventually(lambda: get_backend().get("foo") is None)


class TestThreads:
    def test_each_thread_has_its_own(self, store: str) -> None:
        """redis-py's ``thread_local``: one object, two threads, one holder."""
        shared, inside, go_on = lock(), threading.Event(), threading.Event()

        def hold() -> None:
            with shared:
                inside.set()
                assert go_on.wait(60)

        with ThreadPoolExecutor(1) as thread:
            holds = thread.submit(elsewhere, hold)
            assert inside.wait(60)
            try:
                assert not shared.acquire()
                assert not shared.held
                with pytest.raises(TaskLockError):
                    shared.release()
                assert shared.locked()
            finally:
                go_on.set()
            holds.result(60)
        assert not shared.locked()

    def test_of_many_one_at_a_time(self, store: str) -> None:
        """python-redis-lock: ``test_no_overlap``."""
        inside, seen = [], []

        def enter(number: int) -> None:
            with lock(blocking_timeout=60):
                inside.append(number)
                seen.append(list(inside))
                inside.remove(number)

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda number: elsewhere(lambda: enter(number)), range(24)))
        assert len(seen) == 24
        assert all(len(here) == 1 for here in seen)


class TestDifferences:
    """Each is on purpose. docs/comparison.md has them for readers."""

    def test_there_is_no_lock_without_an_end(self, store: str) -> None:
        """Elsewhere ``timeout=None`` means that a killed holder blocks for ever; here it has a lease all the same."""
        with lock(timeout=None) as mine:
            assert 0 < mine.info().ttl <= 60
            assert mine.info().without_timeout
        with lock() as mine:
            assert 0 < mine.time_left <= 3600
            assert not mine.info().without_timeout

    def test_a_token_cannot_be_chosen(self, store: str) -> None:
        """Whoever chooses it can choose somebody else's."""
        with pytest.raises(TypeError):
            lock(token="test")
        with pytest.raises(TypeError):
            lock(id="test")

    def test_extending_counts_from_now(self, store: str) -> None:
        """redis-py adds to what is left, unless told to replace it: then nobody can say when a lock ends."""
        with lock(timeout=10) as mine:
            assert mine.extend(10)
            assert mine.time_left <= 10

    def test_a_wait_may_be_longer_than_a_lease(self, store: str) -> None:
        """python-redis-lock refuses it (``TimeoutTooLarge``); the heartbeat makes it meaningful."""
        with lock(lease=1, blocking_timeout=2) as mine:
            assert mine.held

    def test_there_is_no_interval_of_polling(self, store: str) -> None:
        """redis-py's ``sleep``: who waits is woken."""
        with pytest.raises(TypeError):
            lock(sleep=2)

    def test_release_of_a_lost_lock_is_no_error(self, store: str) -> None:
        """It would hide the body's own exception; what was found is returned, logged and signalled."""
        with pytest.raises(ZeroDivisionError), lock():
            clear(store)
            raise ZeroDivisionError
