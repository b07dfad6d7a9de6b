"""What the server loses, scripts, connections and data: sent again, made again, or told."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from django.core.cache import caches

from django_tasklock import (
    TaskLock,
    force_release_task_lock,
    list_all_task_locks,
)
from django_tasklock.backends import get_backend
from django_tasklock.backends.redis import RedisBackend
from django_tasklock.types import Released, Renewal, RenewalResult
from tests.support.redis_server import RedisServer
from tests.support.stores import an_ask, eventually, granted

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = pytest.mark.redis


def test_script_flush_between_verbs(store: redis.Redis, name: str) -> None:
    """Gold standard 8.34: scripts are sent again, whichever verb is first to miss its own."""
    backend = get_backend()
    lock = TaskLock(name)
    for verb, answer in (("acquire", True), ("extend", True), ("release", Released.RELEASED)):
        store.script_flush()
        assert getattr(lock, verb)() == answer
    ask = an_ask(name)
    store.script_flush()
    granted(backend.acquire(ask))
    store.script_flush()
    assert backend.get(name).token == ask.token
    store.script_flush()
    assert backend.renew([Renewal(name, ask.token, 60_000)]) == [RenewalResult.RENEWED]
    store.script_flush()
    assert name in [info.name for info in list_all_task_locks()]
    store.script_flush()
    assert force_release_task_lock(name) is True


def test_a_restart_between_verbs(configure: Any, redis_server: RedisServer, name: str) -> None:
    """Gold standard 8.34: neither script nor lock is there any more, and no answer pretends otherwise."""
    configure(LOCATION=redis_server.url)
    lock = TaskLock(name)
    for after in (lambda: lock.extend() is False and lock.lost, lambda: get_backend().get(name) is None):
        assert lock.acquire() is True
        redis_server.kill()
        redis_server.start()
        assert after()
        assert get_backend().renew([Renewal(name, lock.token, 60_000)]) == [RenewalResult.LOST]
        assert lock.release() is Released.GONE


def test_clearing_the_cache_clears_the_locks_in_its_database(
    settings: Any, redis_server: RedisServer, name: str
) -> None:
    """Not prevented, only never silent: the holder is told. The backend's docstring says to use another database."""
    assert "cache.clear()" in (RedisBackend.__doc__ or "")
    settings.CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": redis_server.url}}
    settings.TASKLOCK = {"LOCATION": "default", "LEASE": 0.3}
    told: list[str] = []
    lock = TaskLock(name, on_lost=told.append)
    assert lock.acquire() is True
    caches["default"].clear()
    eventually(lambda: told)
    assert lock.lost
    assert lock.release() is Released.GONE


# --- what the index keeps


def test_the_index_forgets_what_lapsed_long_ago(configure: Any, redis_server: RedisServer, name: str) -> None:
    """Gold standard 8.15: a little at a time, with the grants: it does not grow with the locks that ever lapsed."""
    configure(LOCATION=redis_server.url)
    with redis.Redis.from_url(redis_server.url) as private:
        private.zadd("task_lock#index", {f"task_lock:old{index}": index for index in range(1000)})
        grants = 0  # one in 64 forgets 128
        while private.zcard("task_lock#index") and grants < 5000:
            with TaskLock(name, lease=None):
                grants += 1
        assert private.zcard("task_lock#index") == 0
