"""A connection that cannot be made as redis-py makes it: refused by name, or the store is unavailable."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from django.core.exceptions import ImproperlyConfigured

from django_tasklock import BackendUnavailable, TaskLock, TaskLockError, acquire_task_lock
from django_tasklock.checks.store import check_backend
from tests.support.redis_server import RedisServer
from tests.support.twins import TWINS, call

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = pytest.mark.redis
POOL_OPTIONS = {"django-redis": lambda options: {"CONNECTION_POOL_KWARGS": options}, "core": dict}
ALIASES = pytest.mark.parametrize("kind", POOL_OPTIONS)


class FakeConnection(redis.Connection):
    """As fakeredis has one: its server is in this process."""


class BrokenProvider(redis.CredentialProvider):
    """As one of a cloud that is not reachable."""

    def get_credentials(self) -> tuple[str]:
        raise LookupError("no token for this machine")

    async def get_credentials_async(self) -> tuple[str]:
        raise LookupError("no token for this machine")


@ALIASES
@TWINS
def test_an_unknown_class_is_refused_for_threads_and_coroutines_alike(
    alias: Any, redis_server: RedisServer, name: str, kind: str, way: str
) -> None:
    alias(kind, redis_server.url, POOL_OPTIONS[kind]({"connection_class": FakeConnection}))
    for _ in range(2):
        with pytest.raises(TaskLockError, match=r"FakeConnection.*memory\.MemoryBackend") as caught:
            call(way, TaskLock(name, on_unavailable="run"), "acquire")
        assert isinstance(caught.value, ImproperlyConfigured)
    with pytest.raises(TaskLockError, match="FakeConnection"):
        acquire_task_lock(name)
    with redis.Redis.from_url(redis_server.url) as real:
        assert real.keys("*") == []
    [error] = check_backend()
    assert error.id == "tasklock.E002"
    assert "FakeConnection" in error.msg


@ALIASES
@TWINS
def test_what_fails_as_a_connection_is_made_is_a_store_that_is_not_down(
    alias: Any, redis_server: RedisServer, name: str, kind: str, way: str
) -> None:
    alias(kind, redis_server.url, POOL_OPTIONS[kind]({"credential_provider": BrokenProvider()}))
    with pytest.raises(BackendUnavailable, match="could not be asked.*no token for this machine") as caught:
        call(way, TaskLock(name, on_unavailable="run"), "acquire")
    assert caught.value.down is False
