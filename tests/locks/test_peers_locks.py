"""What users of other locks rely on: cases of redis-py's and python-redis-lock's own tests.

Those that other tests here have, too, are left to them. Where we differ on purpose, the case stands in
``TestDifferences`` with its reason, and in docs/comparison.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from django_tasklock import TaskLock, force_release_task_lock
from django_tasklock.backends import get_backend
from tests.support.public import in_store, raw_redis
from tests.support.stores import an_ask, clear, granted, stores

pytest_plugins = ["tests.support.worker_fixtures"]


@pytest.fixture(params=["memory"])
def store(request: Any, settings: Any) -> Iterator[str]:
    """The name of the store in force, empty."""
    yield from in_store(request.param, settings)


on_redis = pytest.mark.parametrize("store", stores("redis"), indirect=True)


def lock(**options: Any) -> TaskLock:
    return TaskLock("foo", **options)


def taken_by_other_means() -> str:
    """The lock is somebody else's now, whoever thinks that he has it: its token."""
    force_release_task_lock("foo")
    ask = an_ask("foo")
    granted(get_backend().acquire(ask))
    return ask.token


class TestBlocks:
    def test_released_inside(self, store: str) -> None:
        """The end of the block does nothing more, also not to the next holder."""
        with lock() as mine:
            mine.release()
            token = taken_by_other_means()
        assert get_backend().get("foo").token == token


class TestGivingBack:
    @on_redis
    def test_nothing_is_left_that_grows(self, store: str) -> None:
        """python-redis-lock: ``test_signal_cleanup_on_release``. What stays is what all locks share, and the fence."""
        with lock():
            pass
        with raw_redis() as client:
            found = {key for key in client.scan_iter() if "#counts:" not in key and key != "task_lock#hours"}
        assert found <= {"task_lock#fence", "task_lock#fence:foo"}


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
        with lock(lease=10, blocking_timeout=20) as mine:
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
