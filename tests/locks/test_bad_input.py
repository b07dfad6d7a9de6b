"""What cannot work is refused with an error that says why, before anything is stored.

The checks are the same for each way in; so each rule is tried by one of them, and each of them with one wrong name, one
wrong duration and one wrong setting.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_tasklock import (
    StateGuard,
    TaskLock,
    TaskLockAcquireError,
    TaskLockError,
    acquire_task_lock,
    extend_task_lock,
    force_release_task_lock,
    get_lock_holder,
    get_lock_info,
    get_lock_ttl,
    is_task_locked,
    list_all_task_locks,
    model_lock,
    release_task_lock,
    task_lock,
    task_lock_context,
)
from django_tasklock.locks.heartbeat import heartbeat
from tests.support.public import in_store, setting, stored
from tests.support.stores import stores

GUARD = StateGuard(claim_from=["uploading"], claim_as="processing")


@pytest.fixture(params=["memory"], autouse=True)
def store(request, settings) -> Iterator[str]:
    """A store that must be as empty after the test as before it."""
    for name in in_store(request.param, settings):
        following = len(heartbeat)
        yield name
        assert stored(name) == 0
        assert len(heartbeat) == following


# How each way in is tried: a function of a name and of options, which runs a body if it is let in.
def body(*args: object) -> None:
    raise AssertionError("the body must not run")


def by_object(name: Any, **options: Any) -> None:
    TaskLock(name, **options).acquire()
    body()


def by_context(name: Any, **options: Any) -> None:
    async def main() -> None:
        async with task_lock_context(name, raise_on_fail=False, **options):
            body()

    asyncio.run(main())


def by_decorator(name: Any, **options: Any) -> None:
    @task_lock(name, **options)
    async def function(video_id: object) -> None:
        body()

    asyncio.run(function(42))


def by_model_decorator(name: Any, **options: Any) -> None:
    @model_lock("testapp.Video", name, pk="video_id", guard=GUARD, **options)
    def function(video_id: object) -> None:
        body()

    function(42)


def by_function(name: Any, **options: Any) -> None:
    acquire_task_lock(name, **options)
    body()


WAYS = [by_function, by_object, by_context, by_decorator, by_model_decorator]
each_way = pytest.mark.parametrize("enter", WAYS, ids=lambda way: way.__name__)


@pytest.mark.parametrize("store", stores("redis", "database"), indirect=True)
@each_way
def test_nothing_gets_into_a_real_store(enter: Callable[..., None], store: str) -> None:
    for name in ("", "x" * 10_240, b"video:42", 42, "video\n42", "{vid}\0"):
        with pytest.raises(TaskLockError) as caught:
            enter(name)
        assert not isinstance(caught.value, TaskLockAcquireError)  # which would be taken for a busy lock
        assert len(str(caught.value)) < 500
    for options in ({"timeout": 0}, {"lease": math.nan}, {"timeout": 10, "lease": 11}, {"timeout": "60"}):
        with pytest.raises(TaskLockError):
            enter("video:42", **options)


class TestNames:
    @pytest.mark.parametrize(
        "function",
        [
            release_task_lock,
            extend_task_lock,
            is_task_locked,
            get_lock_holder,
            get_lock_ttl,
            get_lock_info,
            force_release_task_lock,
        ],
        ids=lambda function: function.__name__,
    )
    def test_nor_can_one_be_asked_about(self, function):
        with pytest.raises(TaskLockError, match="must not be empty"):
            function("")

    @pytest.mark.parametrize("made", ["", "a\nb", b"x", 42, None], ids=repr)
    def test_nor_one_that_a_call_makes(self, made):
        with pytest.raises(TaskLockError, match="a lock name must"):
            task_lock(lambda video_id: made)(body)(42)
        if made == "a\nb":
            templated = task_lock("video:{video_id}")(lambda video_id: body())
            with pytest.raises(TaskLockError, match="must be printable"):
                templated(made)
            with pytest.raises(TaskLockError, match="must be printable"):
                templated.lock.is_locked(video_id=made)


class TestDurations:
    """What is none is in ``tests/project/test_conf.py``; here it is said of which."""

    @pytest.mark.parametrize("value", [0, math.nan, timedelta(0), "60", True], ids=repr)
    def test_it_is_said_which_is_none(self, value):
        for option in ("timeout", "lease"):
            with pytest.raises(TaskLockError, match=f"^{option} must be"):
                by_object("video:42", **{option: value})
        with pytest.raises(TaskLockError, match="^timeout must be"):
            extend_task_lock("video:42", value)  # though there is nothing to extend
        with TaskLock("video:42", timeout=100) as lock:
            with pytest.raises(TaskLockError, match="^timeout must be"):
                lock.extend(value)
            assert lock.info().time_left <= 100

    @pytest.mark.parametrize("value", [-1, math.nan, "60", False], ids=repr)
    def test_it_is_said_which_is_no_time_to_wait(self, value):
        with pytest.raises(TaskLockError, match="^blocking_timeout must be"):
            by_object("video:42", blocking_timeout=value)
        with pytest.raises(TaskLockError, match="^blocking_timeout must be") as caught:
            TaskLock("video:42").acquire(blocking_timeout=value)
        assert caught.value.name == "video:42"

    @pytest.mark.parametrize("timeout", [math.inf, 10**12], ids=repr)
    def test_one_that_is_too_long(self, timeout):
        with pytest.raises(TaskLockError, match="^timeout (must be|may be)") as caught:
            by_object("video:42", timeout=timeout)
        assert repr(timeout) in str(caught.value)

    @pytest.mark.parametrize("timeout", [{"timeout": 100}, {}], ids=["its own", "the setting's"])
    def test_a_lease_longer_than_the_timeout(self, timeout):
        with pytest.raises(TaskLockError, match="is longer than its timeout.*make it shorter, or pass lease=None"):
            by_object("video:42", lease=3601, **timeout)

    def test_waiting_without_blocking(self):
        with pytest.raises(TaskLockError, match="blocking_timeout=5 with blocking=False means nothing"):
            by_context("video:42", blocking=False, blocking_timeout=5)


class TestPolicies:
    @pytest.mark.parametrize("policy", ["wait", "Run", 5, ["run"]], ids=repr)
    def test_on_unavailable(self, policy):
        with pytest.raises(TaskLockError, match="on_unavailable must be 'run', 'raise' or 'skip', not ") as caught:
            by_object("video:42", on_unavailable=policy)
        assert repr(policy) in str(caught.value)

    @each_way
    def test_an_unknown_option_is_a_type_error(self, enter):
        with pytest.raises(TypeError, match="ttl"):
            enter("video:42", ttl=5)


class TestSettings:
    @each_way
    def test_are_refused_on_first_use(self, enter, settings, store):
        """Which ones are wrong is in ``tests/project/test_conf.py``."""
        settings.TASKLOCK = setting(store, TIMOUT=5)
        with pytest.raises(ImproperlyConfigured, match="no setting 'TIMOUT'.*'TIMEOUT'"):
            enter("video:42")
        for function in (is_task_locked, release_task_lock, lambda name: list_all_task_locks()):
            with pytest.raises(ImproperlyConfigured, match="TIMOUT"):
                function("video:42")
        settings.TASKLOCK = setting(store)

    @pytest.mark.parametrize(
        ("wrong", "said"),
        [
            ({"BACKEND": "no.such.Backend"}, "BACKEND.*'no.such.Backend' cannot be imported"),
            ({"BACKEND": "django_tasklock.backends.redis.Nothing"}, "cannot be imported"),
            ({"BACKEND": "django_tasklock.locks.lock.TaskLock"}, "is not a LockStore class"),
            ({"LOCATION": "nowhere"}, "'nowhere' is neither a CACHES alias.*nor a redis:// URL"),
            ({"LOCATION": "http://localhost"}, "is neither a CACHES alias"),
        ],
        ids=lambda value: str(value)[:40],
    )
    def test_a_store_that_is_none(self, wrong, said, settings, store):
        settings.TASKLOCK = wrong
        with pytest.raises(ImproperlyConfigured, match=said):
            by_object("video:42")
        settings.TASKLOCK = setting(store)


class TestObjects:
    """Calls that mean nothing."""

    @pytest.mark.parametrize("verb", ["release", "extend", "ensure_held", "fence", "token", "time_left"])
    def test_without_having_acquired(self, verb):
        with pytest.raises(TaskLockError, match="'video:42' is not held through this object: acquire"):
            value = getattr(TaskLock("video:42"), verb)
            value()

    def test_released_twice_while_another_thread_holds_it_through_the_same_object(self):
        """Gold standard 8.4: the second release is nobody's, and not that other thread's first."""
        lock = TaskLock("video:42")
        with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other, ThreadPoolExecutor(1) as third:

            def by(thread, call, *arguments):
                return thread.submit(call, *arguments).result(30)

            assert by(one, lock.acquire)
            assert by(one, lock.release)
            assert by(other, lock.acquire)
            assert not by(one, lambda: lock.held or lock.taken)
            with pytest.raises(TaskLockError, match="is not held through this object"):
                by(one, lock.release)
            assert by(other, lambda: lock.held)
            assert is_task_locked("video:42")
            assert by(third, lock.release), "who never had it may be handed it"
            assert by(other, lock.acquire)
        assert lock.held, "its thread is over: nobody else can give it back"
        assert lock.release()
