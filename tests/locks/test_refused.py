"""The server refuses, or does not answer for a while: a busy lock stays busy, and a refusal is no outage."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from django_tasklock import (
    BackendUnavailable,
    RateLimiter,
    TaskLock,
    get_lock_info,
    signals,
)
from django_tasklock.backends import get_backend
from django_tasklock.backends.redis import RedisBackend
from django_tasklock.types import Released, Renewal, RenewalResult
from tests.support.proxy import Proxy, Request
from tests.support.redis_server import RedisServer
from tests.support.stores import an_ask, eventually, granted, new_token
from tests.support.twins import TWINS, call, conflict, listening, token_in

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = [pytest.mark.redis, pytest.mark.slow]

REFUSES = [
    "OOM command not allowed when used memory > 'maxmemory'.",
    "ERR Error running script (call to f_0): @user_script:9: -OOM command not allowed when used memory > 'maxmemory'.",
    "READONLY You can't write against a read only replica.",
    "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
    "NOREPLICAS Not enough good replicas to write.",
    "NOPERM this user has no permissions to run the 'evalsha' command",
    "NOAUTH Authentication required.",
    "WRONGTYPE Operation against a key holding the wrong kind of value",
]
SERVES_NOBODY = [
    "LOADING Redis is loading the dataset in memory",
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "CLUSTERDOWN The cluster is down",
]


@pytest.fixture
def again() -> Iterator[list[str]]:
    """The locks of those who wait and could not ask: what ``store_unavailable`` told of them."""
    heard: list[str] = []

    def receiver(sender: str, action: str, **kwargs: Any) -> None:
        if action == "ask again":
            heard.append(sender)

    signals.store_unavailable.connect(receiver)
    yield heard
    signals.store_unavailable.disconnect(receiver)


@pytest.mark.parametrize("password", ["", ":wrong@"], ids=["none", "wrong"])
def test_a_password_that_is_missing_or_wrong_is_named(
    configure: Any, redis_server: RedisServer, name: str, password: str
) -> None:
    """To the first request, which has many arguments, Redis replies with an error of its protocol."""
    with redis.Redis.from_url(redis_server.url) as client:
        client.config_set("requirepass", "right")
        configure(LOCATION=redis_server.url.replace("://", f"://{password}"), ON_UNAVAILABLE="run")
        with pytest.raises(
            BackendUnavailable, match=r"the password in TASKLOCK\['LOCATION'\] is missing or wrong"
        ) as found:
            TaskLock(name, on_unavailable="run").acquire()
        assert not found.value.down


class TestAFullServer:
    """``maxmemory`` is reached, and nothing may be evicted."""

    @pytest.fixture
    def full(self, configure: Any, redis_server: RedisServer) -> Iterator[redis.Redis]:
        configure(LOCATION=redis_server.url, ON_UNAVAILABLE="run")
        with redis.Redis.from_url(redis_server.url) as client:
            yield client

    @staticmethod
    def fill(client: redis.Redis) -> None:
        client.config_set("maxmemory", 1)
        with pytest.raises(redis.ResponseError, match="OOM|maxmemory"):
            client.set("more", "1")

    @TWINS
    def test_busy_is_busy(
        self, full: redis.Redis, another: Any, redis_server: RedisServer, name: str, way: str
    ) -> None:
        granted(another(redis_server.url).acquire(an_ask(name)))
        self.fill(full)
        lock = TaskLock(name)
        assert conflict(way, lock).time_left is not None

    @TWINS
    def test_locks_go_on(self, full: redis.Redis, name: str, way: str) -> None:
        """They are small, end by themselves, and running without them is worse."""
        self.fill(full)
        lock = TaskLock(name)
        assert call(way, lock, "acquire") is True
        assert lock.held
        assert call(way, lock, "extend", 60) is True
        assert get_backend().renew([Renewal(name, lock.token, 60_000)]) == [RenewalResult.RENEWED]
        assert get_backend().ask_release(name, lock.token) is True
        assert get_backend().renew([Renewal(name, lock.token, 60_000)]) == [RenewalResult.ASKED]
        info = get_lock_info(name)
        assert info is not None
        assert info.time_left > 30
        assert call(way, lock, "release") is Released.RELEASED

    @TWINS
    def test_limits_go_on(self, full: redis.Redis, name: str, way: str) -> None:
        """They hold no more than what was let through, and end by themselves."""
        before = RateLimiter(f"{name}:before", "3/h", adaptive=True)
        call(way, before, "acquire")
        self.fill(full)
        call(way, before, "acquire")
        call(way, before, "acquire")
        assert call(way, before, "try_acquire") is None
        new = RateLimiter(f"{name}:new", "3/h", adaptive=True)
        place, other = call(way, new, "reserve"), call(way, new, "acquire", cost=2)
        assert call(way, new, "try_acquire") is None
        assert call(way, other, "settle", 1) is True
        assert call(way, place, "cancel") is True
        assert call(way, new, "usage").used == 1
        assert call(way, new, "penalize", 10) > 5
        new.adjust(0.5)
        call(way, new, "reset")
        assert call(way, new, "usage").used == 0


class TestAnAnswerThatIsNone:
    """Nothing is known of the lock: only where the store serves nobody does "run" run."""

    @TWINS
    @pytest.mark.parametrize("says", REFUSES)
    def test_a_refusal_runs_nothing(self, proxy: Proxy, name: str, way: str, says: str) -> None:
        proxy.say(says)
        lock = TaskLock(name, on_unavailable="run")
        with pytest.raises(BackendUnavailable) as caught:
            call(way, lock, "acquire")
        assert caught.value.down is False
        assert not lock.taken
        assert call(way, TaskLock(name, on_unavailable="skip"), "acquire") is False

    @TWINS
    @pytest.mark.parametrize("says", SERVES_NOBODY)
    def test_a_store_that_serves_nobody_is_down(self, proxy: Proxy, name: str, way: str, says: str) -> None:
        proxy.say(says)
        lock = TaskLock(name, on_unavailable="run")
        assert call(way, lock, "acquire") is True
        assert not lock.held
        call(way, lock, "release")

    @TWINS
    def test_no_room_for_a_connection(self, configure: Any, redis_server: RedisServer, name: str, way: str) -> None:
        """``maxclients``: others are served."""
        configure(LOCATION=redis_server.url, ON_UNAVAILABLE="run")
        with no_more_clients(redis_server), pytest.raises(BackendUnavailable, match="max number of clients"):
            call(way, TaskLock(name, on_unavailable="run"), "acquire")

    @TWINS
    def test_no_file_left(self, proxy: Proxy, name: str, way: str) -> None:
        """EMFILE: the store has not been asked, and is not known to be down."""
        get_backend()  # whose scripts are read from files
        lock = TaskLock(name, on_unavailable="run")
        if way == "sync":
            with no_more_files(), pytest.raises(BackendUnavailable, match="no room") as caught:
                lock.acquire()
        else:

            async def main() -> None:
                with no_more_files():
                    await lock.aacquire()

            with pytest.raises(BackendUnavailable, match="no room") as caught:
                asyncio.run(main())
        assert caught.value.down is False


@pytest.mark.parametrize("kind", ["django-redis", "core"])
class TestACacheOnRedis:
    """Locks in Django's cache: what Redis says there means what it means elsewhere."""

    @pytest.fixture
    def through(self, alias: Any, settings: Any, kind: str) -> Callable[[str], None]:
        """Makes locks use a cache on the Redis at this address, with the policy "run"."""

        def use(url: str) -> None:
            alias(kind, url)
            settings.TASKLOCK = {
                "BACKEND": "django_tasklock.backends.cache.CacheBackend",
                "LOCATION": "locks",
                "ON_UNAVAILABLE": "run",
            }

        return use

    @staticmethod
    def asks(request: Request) -> bool:
        """Whether that is what a cache asks, and not what a client greets with."""
        return request[0].upper() in (b"SET", b"GET")

    @pytest.mark.parametrize("says", REFUSES)
    def test_a_refusal_runs_nothing(self, through: Any, proxy: Proxy, name: str, says: str) -> None:
        through(proxy.url)
        proxy.say(says, self.asks)
        with pytest.raises(BackendUnavailable, match="refused") as caught:
            TaskLock(name, on_unavailable="run").acquire()
        assert caught.value.down is False

    @pytest.mark.parametrize("says", SERVES_NOBODY)
    def test_a_store_that_serves_nobody_is_down(self, through: Any, proxy: Proxy, name: str, says: str) -> None:
        through(proxy.url)
        proxy.say(says, self.asks)
        lock = TaskLock(name, on_unavailable="run")
        assert lock.acquire() is True
        assert not lock.held
        lock.release()


@contextlib.contextmanager
def no_more_clients(server: RedisServer) -> Iterator[None]:
    """``server`` takes no further connection."""
    with redis.Redis.from_url(server.url) as client:
        before = client.config_get("maxclients")["maxclients"]
        client.config_set("maxclients", client.info("clients")["connected_clients"])
        try:
            with socket.create_connection(("127.0.0.1", server.port)) as probe:
                assert probe.recv(100).startswith(b"-ERR max number of clients")
            yield
        finally:
            client.config_set("maxclients", before)


@contextlib.contextmanager
def no_more_files() -> Iterator[None]:
    """This process can open nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def listens(store: redis.Redis, name: str) -> bool:
    """Whether somebody waits who has been told that the lock is busy, and listens."""
    return listening(store, name) == 1


class TestSomebodyWhoWaits:
    """It was told "busy": until its own deadline nothing turns that into "run"."""

    @TWINS
    def test_asks_again_until_it_gets_it(
        self, proxy: Proxy, store: redis.Redis, stranger: RedisBackend, name: str, way: str, again: list[str]
    ) -> None:
        token = new_token()
        granted(stranger.acquire(an_ask(name, token)))
        lock = TaskLock(name, on_unavailable="run")
        with ThreadPoolExecutor(1) as pool:
            taken = pool.submit(call, way, lock, "acquire", blocking_timeout=60)
            eventually(lambda: listens(store, name) and proxy.quiet)
            proxy.refuse()
            eventually(lambda: again or taken.done())
            assert not taken.done()
            proxy.heal()
            stranger.release(name, token)
            assert taken.result(10) is True
            assert token_in(store, name) == lock.token
            assert again == [name], "once for each outage of each who waits"
            pool.submit(call, way, lock, "release").result(10)

    @TWINS
    def test_is_told_at_its_deadline_that_it_was_busy(
        self, proxy: Proxy, store: redis.Redis, stranger: RedisBackend, name: str, way: str
    ) -> None:
        token = new_token()
        granted(stranger.acquire(an_ask(name, token)))
        lock = TaskLock(name, on_unavailable="run")
        with ThreadPoolExecutor(1) as pool:
            refused = pool.submit(conflict, way, lock, 0.5)
            eventually(lambda: listens(store, name) and proxy.quiet)
            proxy.refuse()
            assert refused.result(10).__cause__ is None, "busy, not unavailable"
        assert not lock.taken
        assert token_in(store, name) == token
