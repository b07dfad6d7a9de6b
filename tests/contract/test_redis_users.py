"""As whom Redis can be asked: passwords, and users who may not do everything."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis

from django_tasklock import BackendUnavailable, TaskLock
from django_tasklock.backends.redis import RedisBackend
from django_tasklock.backends.redis.wake import warn_cannot_subscribe
from django_tasklock.types import Released
from tests.support import environment
from tests.support.exercise import HALVES, Exercise
from tests.support.stores import an_ask, eventually, granted
from tests.support.twins import token_in

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = pytest.mark.redis


COMMANDS = "+@read +@write +@scripting +@pubsub +@connection +time"  # what the backend's docstring asks for


@pytest.fixture
def user(store: redis.Redis) -> Iterator[Callable[..., str]]:
    """``user(*rules)`` makes a user of the run's Redis, and gives the URL to come as it."""
    made: list[str] = []

    def make(*rules: str) -> str:
        who, password = f"tasklock-{secrets.token_hex(4)}", secrets.token_hex(8)
        made.append(who)
        store.execute_command("ACL", "SETUSER", who, "reset", "resetchannels", "on", f">{password}", *rules)
        parts = urlsplit(os.environ[environment.REDIS])
        return f"redis://{who}:{password}@{parts.hostname}:{parts.port}{parts.path}"

    yield make
    store.execute_command("ACL", "DELUSER", *made)


@HALVES
def test_user_with_the_least_permissions(
    configure: Any, user: Any, store: redis.Redis, name: str, exercised: Exercise
) -> None:
    configure(LOCATION=user("~task_lock:*", "~task_lock#*", "&task_lock#*", *COMMANDS.split()))
    exercised(name, store)


@HALVES
def test_user_of_an_alias(alias: Any, user: Any, store: redis.Redis, name: str, exercised: Exercise) -> None:
    """With the password beside the URL, where django-redis takes it."""
    parts = urlsplit(user("~*", "&*", "+@all"))
    bare = f"redis://{parts.username}@{parts.hostname}:{parts.port}{parts.path}"
    alias("django-redis", bare, {"PASSWORD": parts.password})
    exercised(name, store)


def test_a_wrong_password(configure: Any, user: Any, name: str) -> None:
    url = user("~*", "+@all")
    configure(LOCATION=url.replace(urlsplit(url).password or "", "wrong"))
    with pytest.raises(BackendUnavailable, match="Authentication") as caught:
        TaskLock(name).acquire()
    assert "wrong@" not in str(caught.value)


def test_a_user_without_the_keys(configure: Any, user: Any, store: redis.Redis, name: str) -> None:
    configure(LOCATION=user("~something:else", "&*", "+@all"))
    with pytest.raises(BackendUnavailable, match="Redis refused"):
        TaskLock(name).acquire()
    assert not store.exists(f"task_lock:{name}")


def test_a_user_without_channels_waits_by_asking(
    configure: Any, user: Any, store: redis.Redis, stranger: RedisBackend, name: str, warnings_logged: Any
) -> None:
    """Whoever may not listen is not in the queue, and gets the lock when it is free all the same."""
    warn_cannot_subscribe.cache_clear()
    configure(LOCATION=user("~task_lock*", "resetchannels", "+@all"))
    ask = an_ask(name)
    granted(stranger.acquire(ask))
    lock = TaskLock(name)
    with ThreadPoolExecutor(1) as pool:
        waited = pool.submit(lock.acquire, blocking_timeout=30)
        eventually(lambda: any("waiters poll" in line for line in warnings_logged()))
        eventually(lambda: not store.exists(f"task_lock#queue:{name}"))
        assert stranger.release(name, ask.token) is Released.RELEASED
        assert waited.result(10) is True
        assert token_in(store, name) == lock.token
        assert pool.submit(lock.release).result(10) is Released.RELEASED


def test_a_holder_without_channels_releases_to_waiters_that_look(
    configure: Any, user: Any, another: Any, store: redis.Redis, name: str
) -> None:
    """It may not tell the waiter, who has subscribed: the lock is handed over for it to find."""
    mute = another(user("~task_lock*", "resetchannels", "+@all"))
    ask = an_ask(name)
    granted(mute.acquire(ask))
    configure(LOCATION=os.environ[environment.REDIS])
    lock = TaskLock(name)
    with ThreadPoolExecutor(1) as pool:
        waited = pool.submit(lock.acquire, blocking_timeout=30)
        eventually(lambda: store.zcard(f"task_lock#queue:{name}") == 1)
        assert mute.release(name, ask.token) is Released.RELEASED
        assert waited.result(10) is True
        assert store.zcard(f"task_lock#queue:{name}") == 0
        assert pool.submit(lock.release).result(10) is Released.RELEASED
