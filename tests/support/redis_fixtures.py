"""Fixtures for tests that do things to Redis: ``pytest_plugins = ["tests.support.redis_fixtures"]``."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from django_redis.pool import ConnectionFactory

from django_tasklock.backends.redis import RedisBackend
from django_tasklock.conf import Settings
from django_tasklock.locks.heartbeat import heartbeat
from tests.support import environment
from tests.support.exercise import KINDS
from tests.support.proxy import Proxy

Configure = Callable[..., None]


@pytest.fixture
def name() -> str:
    """A lock's name that no other test uses."""
    return f"test:{secrets.token_hex(6)}"


@pytest.fixture
def store() -> Iterator[redis.Redis]:
    """The Redis of the run, asked directly."""
    with redis.Redis.from_url(os.environ[environment.REDIS]) as client:
        yield client


@pytest.fixture
def another() -> Iterator[Callable[..., RedisBackend]]:
    """``another(location)`` is a backend as another process has it: connections of its own, past any proxy."""
    made: list[RedisBackend] = []

    def make(location: str = "") -> RedisBackend:
        made.append(RedisBackend(Settings(LOCATION=location or os.environ[environment.REDIS])))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


@pytest.fixture
def stranger(another: Callable[..., RedisBackend]) -> RedisBackend:
    """One of them, on the Redis of the run."""
    return another()


@pytest.fixture
def configure(settings: Any) -> Iterator[Configure]:
    """``configure(LOCATION=..., ...)`` sets ``TASKLOCK`` for this test. The store being down raises by default."""

    def set_tasklock(**tasklock: Any) -> None:
        settings.TASKLOCK = {"ON_UNAVAILABLE": "raise", **tasklock}

    yield set_tasklock
    heartbeat.reconciler.clear()  # of stores that are gone with this test


@pytest.fixture
def proxy(configure: Configure) -> Iterator[Proxy]:
    """A proxy before the Redis of the run; locks are taken through it."""
    with Proxy(os.environ[environment.REDIS]) as between:
        configure(LOCATION=between.url)
        yield between


@pytest.fixture
def warnings_logged(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What was logged as a warning or worse so far."""
    caplog.set_level(logging.WARNING, "django_tasklock")
    return lambda: [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.fixture
def alias(settings: Any, configure: Configure) -> Callable[..., None]:
    """``alias(kind, url, options, ...)`` makes the cache alias "locks" and has locks use it."""

    def set_alias(kind: str, url: str, options: dict[str, Any] | None = None, **more: Any) -> None:
        ConnectionFactory._pools.clear()  # django-redis keeps them by URL, whatever else the alias says
        settings.CACHES = {"locks": {"BACKEND": KINDS[kind], "LOCATION": url, "OPTIONS": options or {}, **more}}
        configure(LOCATION="locks")

    return set_alias
