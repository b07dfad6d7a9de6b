"""The store is down, hangs or says no: a caller knows within two seconds, the policy decides, and busy stays busy.

Only a store that serves nobody is down: one that refuses this caller may have given the lock to another.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import redis
from django.core.exceptions import ImproperlyConfigured

from django_tasklock import (
    BackendUnavailable,
    ConcurrencyLimiter,
    RateLimiter,
    TaskLock,
    TaskLockAcquireError,
    TaskLockError,
    acquire_task_lock,
    force_release_task_lock,
    get_lock_info,
    is_task_locked,
    list_all_task_locks,
    signals,
    task_lock,
    task_lock_context,
)
from django_tasklock.backends import get_backend
from django_tasklock.backends.redis import RedisBackend
from django_tasklock.checks.store import check_backend
from django_tasklock.types import Released, Renewal, RenewalResult
from tests.support.guards import heard
from tests.support.proxy import Proxy, Request, scripts
from tests.support.redis_server import RedisServer
from tests.support.stores import an_ask, eventually, granted, new_token
from tests.support.twins import TWINS, call, conflict, listening, token_in

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = pytest.mark.redis

Told = list[tuple[str, str]]
PROMISE = 2.0  # seconds until a caller knows
SLACK = 8.0  # what a loaded machine may add
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
def down(proxy: Proxy) -> Proxy:
    """The store is down from the start."""
    proxy.refuse()
    return proxy


@pytest.fixture
def told() -> Iterator[Told]:
    """What ``store_unavailable`` told: whose lock, and what was done."""
    found: Told = []

    def receiver(sender: str, error: BackendUnavailable, action: str, **kwargs: Any) -> None:
        assert isinstance(error, BackendUnavailable)
        found.append((sender, action))

    signals.store_unavailable.connect(receiver)
    yield found
    signals.store_unavailable.disconnect(receiver)


# What each way to take a lock does


@TWINS
@pytest.mark.parametrize("by_setting", [True, False], ids=["setting", "argument"])
def test_policy_run(
    down: Proxy, configure: Any, told: Told, name: str, way: str, by_setting: bool, warnings_logged: Any
) -> None:
    """On without the lock: said in the log and by a signal, and visible on the lock."""
    if by_setting:
        configure(LOCATION=down.url, ON_UNAVAILABLE="run")
    lock = TaskLock(name, on_unavailable=None if by_setting else "run")
    assert call(way, lock, "acquire") is True
    assert lock.taken
    assert not lock.held
    assert not lock.lost
    assert lock.fence == 0
    assert told == [(name, "run")]
    assert any(name in line and "policy: run" in line for line in warnings_logged())
    assert call(way, lock, "release") is Released.GONE
    assert not lock.taken


@TWINS
@pytest.mark.parametrize("by_setting", [True, False], ids=["setting", "argument"])
@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_policies_raise_and_skip(
    down: Proxy, configure: Any, told: Told, name: str, way: str, by_setting: bool, policy: str
) -> None:
    configure(LOCATION=down.url, ON_UNAVAILABLE=policy if by_setting else "run")
    lock = TaskLock(name, on_unavailable=None if by_setting else policy)
    if policy == "skip":
        assert isinstance(conflict(way, lock).__cause__, BackendUnavailable)
    else:
        with pytest.raises(BackendUnavailable) as caught:
            call(way, lock, "acquire")
        assert caught.value.name == name
    assert not lock.taken
    assert told == [(name, policy)]


def decorated(way: str, name: str, **options: Any) -> Callable[[], Any]:
    """A function with ``task_lock``, called as the event loop or a worker would."""

    @task_lock(name, **options)
    def body() -> str:
        return "ran"

    @task_lock(name, **options)
    async def coroutine() -> str:
        return "ran"

    return body if way == "sync" else lambda: asyncio.run(coroutine())


@TWINS
def test_decorator_policies(down: Proxy, told: Told, name: str, way: str) -> None:
    """The result says that it was not another run that kept this one away."""
    assert decorated(way, name, on_unavailable="run")() == "ran"
    with heard(signals.lock_conflict) as conflicts:
        assert decorated(way, name, on_unavailable="skip")() == {
            "status": "skipped",
            "reason": "lock_unavailable",
            "name": name,
            "holder": None,
            "held_for": None,
            "time_left": None,
        }
    assert [one["action"] for one in conflicts] == ["skip"]
    assert told == [(name, "run"), (name, "skip")]


def within(way: str, context: task_lock_context) -> bool:
    """What the context manager yields."""
    if way == "sync":
        with context as acquired:
            return acquired

    async def entered() -> bool:
        async with context as acquired:
            return acquired

    return asyncio.run(entered())


@TWINS
def test_context_manager_policies(down: Proxy, told: Told, name: str, way: str) -> None:
    assert within(way, task_lock_context(name, on_unavailable="run")) is True
    assert within(way, task_lock_context(name, raise_on_fail=False, on_unavailable="skip")) is False
    with pytest.raises(TaskLockAcquireError):
        within(way, task_lock_context(name, on_unavailable="skip"))
    for raise_on_fail in (True, False):
        with pytest.raises(BackendUnavailable):
            within(way, task_lock_context(name, raise_on_fail=raise_on_fail, on_unavailable="raise"))
    assert told == [(name, action) for action in ("run", "skip", "skip", "raise", "raise")]


@TWINS
@pytest.mark.parametrize("kind", [TaskLock, partial(ConcurrencyLimiter, limit=1)], ids=["lock", "limiter"])
def test_a_block_fails_closed(down: Proxy, configure: Any, name: str, way: str, kind: Any) -> None:
    """Whatever the setting says: code that names the lock itself means to have it."""
    configure(LOCATION=down.url, ON_UNAVAILABLE="run")
    with pytest.raises(BackendUnavailable):
        call(way, kind(name), "acquire")
    ran = []
    with pytest.raises(BackendUnavailable), kind(name):
        ran.append(name)
    assert not ran
    assert acquire_task_lock(name, 30) is True
    assert decorated(way, name)() == "ran"


@pytest.mark.parametrize("policy", ["run", "skip"])
def test_questions_are_never_answered_by_the_policy(down: Proxy, configure: Any, name: str, policy: str) -> None:
    """Not known is not free."""
    configure(LOCATION=down.url, ON_UNAVAILABLE=policy)
    decorated_lock = task_lock(lambda: name)(print).lock
    for question in (is_task_locked, get_lock_info, force_release_task_lock, lambda name: decorated_lock.is_locked()):
        with pytest.raises(BackendUnavailable):
            question(name)


# It says no, or hangs


@TWINS
@pytest.mark.parametrize("says", REFUSES)
def test_a_refusal_runs_nothing(proxy: Proxy, name: str, way: str, says: str) -> None:
    """Whatever it says, it is one kind of error to the caller, and the words are in it."""
    proxy.say(says)
    lock = TaskLock(name, on_unavailable="run")
    with pytest.raises(BackendUnavailable, match=says.rsplit(maxsplit=1)[-1].rstrip(".")) as caught:
        call(way, lock, "acquire")
    assert caught.value.down is False
    assert not lock.taken
    assert call(way, TaskLock(name, on_unavailable="skip"), "acquire") is False


@TWINS
@pytest.mark.parametrize("says", SERVES_NOBODY)
def test_a_store_that_serves_nobody_is_down(proxy: Proxy, name: str, way: str, says: str) -> None:
    proxy.say(says)
    lock = TaskLock(name, on_unavailable="run")
    assert call(way, lock, "acquire") is True
    assert not lock.held
    call(way, lock, "release")


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
        assert "wrong@" not in str(found.value)


def test_no_room_for_a_connection(configure: Any, redis_server: RedisServer, name: str) -> None:
    """``maxclients``: others are served."""
    configure(LOCATION=redis_server.url, ON_UNAVAILABLE="run")
    with no_more_clients(redis_server), pytest.raises(BackendUnavailable, match="max number of clients"):
        TaskLock(name, on_unavailable="run").acquire()


def test_no_file_left(proxy: Proxy, name: str) -> None:
    """EMFILE: the store has not been asked, and is not known to be down."""
    get_backend()  # whose scripts are read from files
    with no_more_files(), pytest.raises(BackendUnavailable, match="no room") as caught:
        TaskLock(name, on_unavailable="run").acquire()
    assert caught.value.down is False


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


class BrokenProvider(redis.CredentialProvider):
    """As one of a cloud that is not reachable."""

    def get_credentials(self) -> tuple[str]:
        raise LookupError("no token for this machine")


class FakeConnection(redis.Connection):
    """As fakeredis has one: its server is in this process."""


@pytest.fixture(params=["django-redis", "core"])
def through(request: Any, alias: Any) -> Callable[..., None]:
    """``through(url, option=...)``: locks use the pool of Django's cache alias with that option."""

    def use(url: str, **options: Any) -> None:
        alias(request.param, url, {"CONNECTION_POOL_KWARGS": options} if request.param == "django-redis" else options)

    return use


def test_an_unknown_class_of_connections_is_refused(through: Any, redis_server: RedisServer, name: str) -> None:
    through(redis_server.url, connection_class=FakeConnection)
    with pytest.raises(TaskLockError, match=r"FakeConnection.*memory\.MemoryBackend") as caught:
        TaskLock(name, on_unavailable="run").acquire()
    assert isinstance(caught.value, ImproperlyConfigured)
    [error] = check_backend()
    assert error.id == "tasklock.E002"
    assert "FakeConnection" in error.msg


def test_what_fails_as_a_connection_is_made_is_a_store_that_is_not_down(
    through: Any, redis_server: RedisServer, name: str
) -> None:
    through(redis_server.url, credential_provider=BrokenProvider())
    with pytest.raises(BackendUnavailable, match="could not be asked.*no token for this machine") as caught:
        TaskLock(name, on_unavailable="run").acquire()
    assert caught.value.down is False


@pytest.mark.parametrize("kind", ["django-redis", "core"])
def test_a_cache_on_redis_means_what_redis_says(alias: Any, settings: Any, proxy: Proxy, name: str, kind: str) -> None:
    def asks(request: Request) -> bool:  # and not what a client greets with
        return request[0].upper() in (b"SET", b"GET")

    alias(kind, proxy.url)
    settings.TASKLOCK = {
        "BACKEND": "django_tasklock.backends.cache.CacheBackend",
        "LOCATION": "locks",
        "ON_UNAVAILABLE": "run",
    }
    proxy.say(REFUSES[0], asks)
    with pytest.raises(BackendUnavailable, match="refused") as caught:
        TaskLock(name, on_unavailable="run").acquire()
    assert caught.value.down is False
    proxy.heal()
    proxy.say(SERVES_NOBODY[0], asks)
    lock = TaskLock(name, on_unavailable="run")
    assert lock.acquire() is True
    assert not lock.held
    lock.release()


def asked_every_way(name: str) -> dict[str, Callable[[], object]]:
    """Every verb of both halves."""
    backend, ask = get_backend(), an_ask(name)

    def twin(verb: Callable[..., Any], *arguments: Any) -> Callable[[], object]:
        return lambda: asyncio.run(verb(*arguments))

    return {
        "acquire": lambda: TaskLock(name).acquire(),
        "wait": lambda: TaskLock(name).acquire(blocking_timeout=60),
        "release": lambda: backend.release(name, ask.token),
        "extend": lambda: backend.extend(name, ask.token, 1000, 1000),
        "get": lambda: get_lock_info(name),
        "is locked": lambda: is_task_locked(name),
        "list": list_all_task_locks,
        "remove": lambda: force_release_task_lock(name),
        "async acquire": twin(TaskLock(name).aacquire),
        "async wait": lambda: asyncio.run(TaskLock(name).aacquire(blocking_timeout=60)),
        "async release": twin(backend.arelease, name, ask.token),
        "async extend": twin(backend.aextend, name, ask.token, 1000, 1000),
        "async get": twin(TaskLock(name).ainfo),
    }


def all_told_in_time(name: str) -> None:
    """Each verb raises ``BackendUnavailable``, and soon enough. They run beside each other."""

    def timed(ask: Callable[[], object]) -> float:
        started = time.monotonic()
        with pytest.raises(BackendUnavailable):
            ask()
        return time.monotonic() - started

    verbs = asked_every_way(name)
    with ThreadPoolExecutor(len(verbs)) as pool:
        took = dict(zip(verbs, pool.map(timed, verbs.values()), strict=True))
    assert max(took.values()) < PROMISE + SLACK, took


@pytest.mark.slow
def test_a_store_that_refuses_connections(proxy: Proxy, name: str) -> None:
    proxy.refuse()
    all_told_in_time(name)


@pytest.mark.slow
@pytest.mark.parametrize("connected", [True, False], ids=["connected", "new connection"])
def test_a_store_that_hangs(configure: Any, redis_server: RedisServer, name: str, connected: bool) -> None:
    """A stopped server, whose kernel still accepts connections for it."""
    configure(LOCATION=redis_server.url)
    if connected:
        get_backend().get(name)
    assert redis_server.process is not None
    os.kill(redis_server.process.pid, signal.SIGSTOP)
    try:
        all_told_in_time(name)
    finally:
        os.kill(redis_server.process.pid, signal.SIGCONT)


@pytest.mark.slow
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


# It comes back


@TWINS
def test_a_release_that_the_store_did_not_hear_is_done_when_it_is_back(
    proxy: Proxy, store: redis.Redis, told: Told, name: str, way: str
) -> None:
    lock = TaskLock(name)
    call(way, lock, "acquire")
    proxy.refuse()
    assert call(way, lock, "release") is Released.UNKNOWN
    assert not lock.taken
    assert told == [(name, "release later")]
    assert store.exists(f"task_lock:{name}")
    proxy.heal()
    eventually(lambda: not store.exists(f"task_lock:{name}"))


def test_a_lock_that_was_only_ever_asked_for_is_not_taken_from_the_next_one(
    proxy: Proxy, store: redis.Redis, stranger: RedisBackend, name: str
) -> None:
    """Gold standard 8.2: giving up what may have been left behind touches nobody else's lock."""
    proxy.refuse()
    with pytest.raises(BackendUnavailable):
        TaskLock(name).acquire(blocking_timeout=1)  # a place in the queue may have been left
    token = new_token()
    granted(stranger.acquire(an_ask(name, token)))
    with proxy.recorded() as sent:
        proxy.heal()
        eventually(lambda: any(scripts("release")(request) for request in proxy.requests))
    assert sent
    assert token_in(store, name) == token


@pytest.mark.slow
class TestSomebodyWhoWaits:
    """It was told "busy": until its own deadline nothing turns that into "run"."""

    @TWINS
    def test_asks_again_until_it_gets_it(
        self, proxy: Proxy, store: redis.Redis, stranger: RedisBackend, name: str, way: str, told: Told
    ) -> None:
        token = new_token()
        granted(stranger.acquire(an_ask(name, token)))
        lock = TaskLock(name, on_unavailable="run")
        with ThreadPoolExecutor(1) as pool:
            taken = pool.submit(call, way, lock, "acquire", blocking_timeout=60)
            eventually(lambda: listening(store, name) == 1 and proxy.quiet)
            proxy.refuse()
            eventually(lambda: told or taken.done())
            assert not taken.done()
            proxy.heal()
            stranger.release(name, token)
            assert taken.result(10) is True
            assert token_in(store, name) == lock.token
            assert told == [(name, "ask again")], "once for each outage of each who waits"
            pool.submit(call, way, lock, "release").result(10)

    @TWINS
    def test_is_told_at_its_deadline_that_it_was_busy(
        self, proxy: Proxy, store: redis.Redis, stranger: RedisBackend, name: str, way: str
    ) -> None:
        token = new_token()
        granted(stranger.acquire(an_ask(name, token)))
        lock = TaskLock(name, on_unavailable="run")
        with ThreadPoolExecutor(1) as pool:
            refused = pool.submit(conflict, way, lock, 4)
            eventually(lambda: listening(store, name) == 1 and proxy.quiet)
            proxy.refuse()
            assert refused.result(30).__cause__ is None, "busy, not unavailable"
        assert not lock.taken
        assert token_in(store, name) == token
