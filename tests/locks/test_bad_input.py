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
NOT_POSITIVE = [0, -0.5, math.nan, timedelta(0)]
NOT_A_DURATION = ["60", True]


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
        with pytest.raises(TaskLockError):
            enter(name)
    for options in ({"timeout": 0}, {"lease": math.nan}, {"timeout": 10, "lease": 11}, {"timeout": "60"}):
        with pytest.raises(TaskLockError):
            enter("video:42", **options)


class TestNames:
    @pytest.mark.parametrize(
        ("name", "said"),
        [
            ("", "must not be empty"),
            ("task_lock:", "must not be empty"),
            ("x" * 10_240, "may have 200 characters"),
            (b"video:42", "must be str, not bytes.*decode it first"),
            ("video\n42", "must be printable"),
            ("video\x0042", "must be printable"),
            (42, "must be str, not int"),
            (None, "must be str, not NoneType"),
        ],
        ids=["empty", "the prefix alone", "10 kB", "bytes", "a line break", "NUL", "an int", "None"],
    )
    def test_none_gets_in(self, name, said):
        with pytest.raises(TaskLockError, match=said) as caught:
            by_object(name)
        assert not isinstance(caught.value, TaskLockAcquireError)  # which would be taken for a busy lock
        assert len(str(caught.value)) < 500

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

    @pytest.mark.parametrize("template", ["video:{vid}", "video:{}", "video:{7}", "{video_id}{video_id}", "video:{"])
    def test_a_template_is_refused_where_it_is_written(self, template, monkeypatch):
        monkeypatch.setattr("django_tasklock.decorators.locks.Call", body)  # a call would get there
        with pytest.raises(TaskLockError, match=r"lock name|side by side") as caught:
            by_model_decorator(template)
        assert "function" in str(caught.value)
        if "vid}" in template:
            assert "'vid'" in str(caught.value)
            assert "video_id" in str(caught.value)


class TestDurations:
    @pytest.mark.parametrize("timeout", [*NOT_POSITIVE, *NOT_A_DURATION, math.inf, 10**12], ids=repr)
    def test_timeout(self, timeout):
        with pytest.raises(TaskLockError, match="^timeout (must be|may be)") as caught:
            by_object("video:42", timeout=timeout)
        assert repr(timeout) in str(caught.value)

    @pytest.mark.parametrize("lease", [*NOT_POSITIVE, *NOT_A_DURATION, math.inf], ids=repr)
    def test_lease(self, lease):
        with pytest.raises(TaskLockError, match="^lease (must be|may be)"):
            by_object("video:42", timeout=100, lease=lease)

    @pytest.mark.parametrize("timeout", [{"timeout": 100}, {}], ids=["its own", "the setting's"])
    def test_a_lease_longer_than_the_timeout(self, timeout):
        with pytest.raises(TaskLockError, match="is longer than its timeout.*make it shorter, or pass lease=None"):
            by_object("video:42", lease=3601, **timeout)

    @pytest.mark.parametrize("patience", [*NOT_POSITIVE, *NOT_A_DURATION], ids=repr)
    def test_blocking_timeout(self, patience):
        with pytest.raises(TaskLockError, match="^blocking_timeout must be"):
            by_object("video:42", blocking_timeout=patience)
        with pytest.raises(TaskLockError, match="^blocking_timeout must be") as caught:
            TaskLock("video:42").acquire(blocking_timeout=patience)
        assert caught.value.name == "video:42"
        with pytest.raises(TaskLockError, match=r"^@task_lock\('video:42'\): blocking_timeout must be"):
            by_decorator("video:42", blocking_timeout=patience, on_conflict="wait")

    def test_waiting_without_blocking(self):
        with pytest.raises(TaskLockError, match="blocking_timeout=5 with blocking=False means nothing"):
            by_context("video:42", blocking=False, blocking_timeout=5)

    @pytest.mark.parametrize("timeout", [*NOT_POSITIVE, *NOT_A_DURATION], ids=repr)
    def test_extending(self, timeout):
        with pytest.raises(TaskLockError, match="^timeout must be"):
            extend_task_lock("video:42", timeout)  # though there is nothing to extend
        lock = TaskLock("video:42", timeout=100)
        with lock, pytest.raises(TaskLockError, match="^timeout must be"):
            lock.extend(timeout)
        with lock:
            assert 90 < lock.info().time_left <= 100


class TestPolicies:
    @pytest.mark.parametrize("policy", ["ignore", "Skip", 5, ["skip"]], ids=repr)
    def test_on_conflict(self, policy):
        with pytest.raises(TaskLockError, match="on_conflict must be (one of )?'skip', 'raise'.* not ") as caught:
            by_decorator("video:42", on_conflict=policy)
        assert repr(policy) in str(caught.value)

    @pytest.mark.parametrize("policy", ["wait", "Run", 5, ["run"]], ids=repr)
    def test_on_unavailable(self, policy):
        for enter in (by_object, by_decorator):
            with pytest.raises(TaskLockError, match="on_unavailable must be 'run', 'raise' or 'skip', not ") as caught:
                enter("video:42", on_unavailable=policy)
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
