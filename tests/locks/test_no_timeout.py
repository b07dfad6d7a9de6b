"""``timeout=None``: where there is a lease a lock is held until it is released."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command

from django_tasklock import (
    ConcurrencyLimiter,
    TaskLock,
    TaskLockAcquireError,
    acquire_task_lock,
    current_lock,
    get_lock_info,
    release_task_lock,
    task_lock,
    task_lock_context,
)
from django_tasklock.backends import get_backend
from django_tasklock.backends.memory import reset
from tests.support.guards import MEMORY, elsewhere
from tests.support.once_app import OnceApp, once_app

YEAR = 365 * 86400


@pytest.fixture(autouse=True)
def _locks_in_memory(settings: Any) -> None:
    settings.TASKLOCK = MEMORY
    reset()


@pytest.fixture
def app() -> Iterator[OnceApp]:
    with once_app() as made:
        yield made


def left() -> tuple[bool, float | None]:
    """Whether the lock that is held here has no timeout, and its lease."""
    lock = current_lock()
    info = get_lock_info(lock.name)
    assert info is not None
    assert info.time_left == pytest.approx(lock.time_left, abs=30)
    return info.time_left > YEAR, None if info.ttl is None else round(info.ttl)


class TestOfALock:
    @pytest.mark.parametrize(
        ("options", "forever", "ttl"),
        [
            ({"timeout": None}, True, 60),
            ({"timeout": None, "lease": 5}, True, 5),
            ({"timeout": None, "lease": None}, False, 3600),  # nobody would free it
            ({}, False, 60),
            ({"lease": 5}, False, 5),
        ],
    )
    def test_as_it_says(self, options, forever, ttl):
        with TaskLock("a", **options):
            assert left() == (forever, ttl)
        with task_lock_context("a", **options):
            assert left() == (forever, ttl)
        assert task_lock("a", **options)(left)() == (forever, ttl)

    def test_as_the_setting_says(self, settings):
        settings.TASKLOCK = {**MEMORY, "TIMEOUT": None, "LEASE": 30}
        with TaskLock("a"):
            assert left() == (True, 30)
        with TaskLock("a", timeout=100):
            assert left() == (False, 30)
        assert acquire_task_lock("a")  # without a lease
        info = get_lock_info("a")
        assert info is not None
        assert info.time_left <= 3600
        assert release_task_lock("a")

    @pytest.mark.redis
    @pytest.mark.database
    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("kind", ["redis", "database"])
    def test_in_the_stores(self, kind, request, settings):
        """Ten years in milliseconds fit everywhere; who waits for one waits as long."""
        if kind == "redis":
            settings.TASKLOCK = {"LOCATION": request.getfixturevalue("redis_server").url}
        else:
            settings.TASKLOCK = {"BACKEND": "django_tasklock.backends.database.DatabaseBackend"}
        got = []
        waits = task_lock("a", timeout=None, on_conflict="wait")(lambda: got.append(left()))
        lock = TaskLock("a", timeout=None, lease=30)
        lock.acquire()
        waiter = threading.Thread(target=waits)
        waiter.start()
        try:
            info = get_lock_info("a")
            assert info is not None
            assert info.time_left > YEAR
        finally:
            lock.release()
            waiter.join(30)
        assert [forever for forever, _ in got] == [True]

    def test_what_a_busy_one_says(self):
        with TaskLock("a", timeout=None):
            raising = task_lock("a", on_conflict="raise")(lambda: None)
            with pytest.raises(TaskLockAcquireError, match=r"s, until it is released$"):
                elsewhere(raising)


@pytest.mark.django_db
def test_what_operators_are_shown(client, admin_user, settings) -> None:
    """Not that it ends in ten years."""
    settings.ROOT_URLCONF = "tests.urls"
    client.force_login(admin_user)
    with TaskLock("video:1", timeout=None), ConcurrencyLimiter("api", 2, timeout=None):
        said = [printed("locks"), printed("locks", "video:1"), printed("limits", "api")]
        said.append(client.get("/admin/tasklock/lock/").content.decode())
        said.append(client.get("/admin/tasklock/ratelimit/api/change/").content.decode())
    for text in said:
        assert "until it is released" in text or "it has no timeout" in text
        assert "3649 d" not in text
        assert "3650 d" not in text


def printed(*command: str) -> str:
    out = StringIO()
    call_command(*command, stdout=out)
    return out.getvalue()


class TestOfATask:
    def test_every_way_to_say_so(self, app):
        """Source 004: ``celery_once_timeout: None``."""
        short, endless = app.task(left, key="a"), app.task(left, key="a", timeout=None)
        for publish, forever in [
            (lambda: short.delay(), False),
            (lambda: endless.delay(), True),
            (lambda: short.once(timeout=None).delay(), True),
            (lambda: short.delay(celery_once_timeout=None), True),
            (lambda: endless.once(timeout=100).delay(), False),
            (lambda: endless.once(lease=None).delay(), False),
        ]:
            publish()
            assert app.run()[1][0] is forever

    def test_one_that_is_unique_is_not_for_ten_years(self, app):
        """Its message may be lost."""
        task = app.task(left, key="a", timeout=None, unique="until_finish")
        task.delay()
        [record] = get_backend().records()
        assert record.until - record.at <= 3_610_000
