"""A lock of several names: all or nothing, one lease, and nobody waits for somebody who waits."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest

from django_tasklock import (
    LockLost,
    TaskLock,
    TaskLockAcquireError,
    TaskLockError,
    current_lock,
    force_release_task_lock,
    get_lock_info,
    is_task_locked,
    task_lock,
    task_lock_context,
)
from django_tasklock.backends import get_backend
from django_tasklock.names import Names
from django_tasklock.types import Released
from tests.support.public import in_store
from tests.support.stores import eventually, stores
from tests.support.twins import TWINS, call, conflict, thread_of
from tests.support.workers import Crew

pytest_plugins = ["tests.support.redis_fixtures", "tests.support.worker_fixtures"]


@pytest.fixture(params=["memory"])
def store(request, settings) -> Iterator[str]:
    """The name of the store in force, empty."""
    yield from in_store(request.param, settings)


def free(*names: str) -> bool:
    """Whether nobody has any of them."""
    return not any(map(get_backend().get, names))


class TestNames:
    def test_sorted_and_each_once(self):
        lock = TaskLock("b", "task_lock:a", "b", "c")
        assert lock.names == ("a", "b", "c")
        assert str(lock.name) == "a + b + c"
        assert repr(lock) == "<TaskLock 'a + b + c'>"

    @pytest.mark.parametrize("names", [("a",), ("a", "a"), ("a", "task_lock:a")])
    def test_one_of_them_is_a_lock_as_ever(self, names):
        lock = TaskLock(*names)
        assert (lock.name, type(lock.name), lock.names) == ("a", str, ("a",))

    def test_too_many(self):
        TaskLock(*map(str, range(64)))
        with pytest.raises(TaskLockError, match="64 names, not 65"):
            TaskLock(*map(str, range(65)))

    def test_an_empty_list(self):
        with pytest.raises(TaskLockError, match="empty list"):
            task_lock_context([])
        with pytest.raises(TaskLockError, match="empty list"):
            task_lock([])


class TestOneLease:
    @TWINS
    def test_taken_and_given_back(self, store, way):
        lock = TaskLock("a", "b")
        assert call(way, lock, "acquire") is True
        assert lock.held
        assert get_lock_info("a").fingerprint == get_lock_info("b").fingerprint  # one token for both
        assert lock.info().name == "a"
        assert lock.locked()
        assert call(way, lock, "extend", 500) is True
        assert lock.time_left > 400
        assert lock.fence == max(record.fence for record in map(get_backend().get, ("a", "b")))
        lock.ensure_held()
        assert call(way, lock, "release") is Released.RELEASED
        assert free("a", "b")
        assert lock.info() is None

    @TWINS
    def test_the_conflict_says_which_one_and_who_has_it(self, store, way):
        with TaskLock("b"):
            lock = TaskLock("a", "b", "c")
            results: list[TaskLockAcquireError] = []
            thread = thread_of(lambda: results.append(conflict(way, lock)))
            thread.start()
            thread.join(20)
        [error] = results
        assert error.name == "b"
        assert "lock 'b' is held by" in str(error)
        assert error.holder
        assert free("a", "c")

    def test_one_that_is_released_by_force_is_the_loss_of_all(self, store):
        lost: list[str] = []
        lock = TaskLock("a", "b", lease=2, timeout=30, on_lost=lost.append)
        assert lock.acquire()
        assert force_release_task_lock("b")
        with pytest.raises(LockLost, match=r"'a \+ b' is lost"):
            eventually(lambda: lock.ensure_held())
        eventually(lambda: lost)
        assert lock.release() is Released.GONE
        assert free("a", "b")


class TestOneThread:
    def test_what_it_has_already_it_does_not_wait_for(self, store):
        with TaskLock("a", "b"):
            for names in (("a",), ("b",), ("a", "b"), ("b", "c")):
                with pytest.raises(TaskLockError, match="already held by this thread"):
                    TaskLock(*names, blocking=True).acquire()
        with TaskLock("b"), pytest.raises(TaskLockError, match="'b' is already held by this thread"):
            TaskLock("a", "b", blocking=True).acquire()
        assert free("a", "b", "c")

    def test_reentrant_is_who_has_them_all(self, store):
        with TaskLock("a", "b", "c") as outer:
            for names in (("a",), ("c", "b"), ("a", "b", "c")):
                with TaskLock(*names, reentrant=True) as inner:
                    assert inner.token == outer.token
                assert not free(*names)
            with pytest.raises(TaskLockError, match="not all of the others"):
                TaskLock("c", "d", reentrant=True).acquire()
        assert free("a", "b", "c")
        assert TaskLock("a").acquire()


class TestDecorated:
    def test_all_names_of_the_call_are_locked(self, store):
        @task_lock(["b:{y}", "a:{x}"])
        def both(x: int, y: int) -> tuple[str, ...]:
            assert not free("a:1")
            assert not free("b:2")
            return current_lock().names

        assert both.lock.name(x=1, y=2).each == ("a:1", "b:2")
        assert both.lock.is_locked(1, 2) is False
        assert both(1, 2) == ("a:1", "b:2")
        assert free("a:1", "b:2")
        with TaskLock("b:2"):
            assert both.lock.is_locked(1, 2) is True
            results: list[object] = []
            thread = thread_of(lambda: results.append(both(1, 2)))
            thread.start()
            thread.join(20)
        assert results[0]["status"] == "skipped"
        assert results[0]["name"] == "a:1 + b:2"


WORK = """
    import random
    def work(names, rounds, seed):
        chance = random.Random(seed)
        journal = []
        for _ in range(rounds):
            wanted = chance.sample(names, chance.choice([1, 2, 3]))
            chance.shuffle(wanted)
            lock = TaskLock(*wanted, lease=30, timeout=120, blocking_timeout=60)
            assert lock.acquire()
            began = time.monotonic()
            time.sleep(chance.choice([0, 0.001, 0.003]))
            lock.ensure_held()
            journal += [(name, began, time.monotonic(), lock.fence) for name in lock.names]
            assert lock.release()
        return journal
"""


@pytest.mark.slow
@pytest.mark.parametrize("store", stores("redis", "database"), indirect=True)
def test_eight_processes_with_random_names_all_come_to_an_end(store: str, crew: Crew, settings) -> None:
    names, rounds = [f"n{number}" for number in range(5)], 40 if store == "redis" else 6
    workers = crew.hire_many(8, f"""
        from django.test.utils import override_settings
        override_settings(TASKLOCK={settings.TASKLOCK!r}).enable()
    """)  # fmt: skip
    for seed, worker in enumerate(workers):
        worker.do(WORK)
        worker.start(f"work({names!r}, {rounds}, {seed})")
    journal = [entry for worker in workers for entry in worker.done(120)]
    assert len({name for name, *_ in journal}) == len(names)
    for name in names:
        holds = sorted((began, over, fence) for one, began, over, fence in journal if one == name)
        assert all(before[1] <= after[0] and before[2] < after[2] for before, after in pairwise(holds)), name
    assert free(*names)


def test_a_name_that_reads_like_several_is_another(store: str) -> None:
    with TaskLock("a", "b"):
        assert isinstance(TaskLock("a", "b").name, Names)
        with TaskLock("a + b", reentrant=True):
            assert is_task_locked("a + b")
        with TaskLock("a + b"), pytest.raises(TaskLockError, match="already held by this thread"):
            TaskLock("a", "b").acquire()
        assert not free("a", "b")
