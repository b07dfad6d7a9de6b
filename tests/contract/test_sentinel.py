"""Locks behind Sentinel, found through django-redis or by URL: they follow the primary."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from django.core import checks
from django_redis.pool import ConnectionFactory

from django_tasklock import BackendUnavailable, TaskLock
from django_tasklock.backends import get_backend
from django_tasklock.backends.redis.location import database_of, pool_of
from django_tasklock.checks.store import check_backend
from django_tasklock.types import Released
from tests.support.exercise import exercise
from tests.support.redis_server import free_port
from tests.support.sentinel import SERVICE, Watched, watched
from tests.support.stores import an_ask, eventually, granted
from tests.support.twins import token_in

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = pytest.mark.redis

ENCRYPTED = redis.SSLConnection


@pytest.fixture(scope="module")
def watch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """One set of servers for the module."""
    with watched(tmp_path_factory.mktemp("sentinel")) as found:
        yield found


@pytest.fixture
def alias(settings: Any, configure: Callable[..., None]) -> Callable[..., None]:
    """``alias(port, ...)`` makes the cache alias "locks", whose Sentinels listen there, and has locks use it."""

    def set_alias(*ports: int, **options: Any) -> None:
        ConnectionFactory._pools.clear()  # it keeps them by URL, whatever else the alias says
        settings.CACHES = {
            "locks": {
                "BACKEND": "django_redis.cache.RedisCache",
                "LOCATION": f"redis://{SERVICE}/3",
                "OPTIONS": {
                    "CLIENT_CLASS": "django_redis.client.SentinelClient",
                    "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
                    "CONNECTION_POOL_CLASS": "redis.sentinel.SentinelConnectionPool",
                    "SENTINELS": [("127.0.0.1", port) for port in ports],
                    "SENTINEL_KWARGS": options,
                },
            }
        }
        configure(LOCATION="locks")

    return set_alias


@pytest.mark.parametrize("by", ["alias", "url"])
def test_the_primary_is_found(watch: Watched, alias: Any, configure: Any, name: str, by: str) -> None:
    if by == "alias":
        alias(watch.port, decode_responses=True, socket_timeout=30)
    else:
        configure(LOCATION=f"redis+sentinel://127.0.0.1:{free_port()},127.0.0.1:{watch.port}/{SERVICE}/3")
    with watch.primary(3) as store:
        exercise(name, store)


def test_a_url_has_the_servers_user(watch: Watched, configure: Any, name: str) -> None:
    """Sentinels are not asked as that one."""
    url = f"redis+sentinel://somebody:p%40ss@127.0.0.1:{watch.port}/{SERVICE}/3"
    configure(LOCATION=url)
    with watch.primary(3) as store:
        with pytest.raises(BackendUnavailable, match="AuthenticationError"):
            TaskLock(name).acquire()
        store.execute_command("ACL", "SETUSER", "somebody", "reset", "on", ">p@ss", "~*", "&*", "+@all")
        try:
            lock = TaskLock(name)
            assert lock.acquire() is True
            assert token_in(store, name) == lock.token
            assert lock.release()
        finally:
            store.execute_command("ACL", "DELUSER", "somebody")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis+sentinel://127.0.0.1:{port}/another/3", "know no service 'another'"),
        ("rediss+sentinel://127.0.0.1:{port}/{service}/3", "add sentinel_ssl=false"),
        ("redis+sentinel://127.0.0.1:{port}/{service}/3?sentinel_password=a", "AuthenticationError"),
    ],
)
def test_what_sentinels_refuse_this_client_is_no_outage(
    watch: Watched, configure: Any, name: str, url: str, says: str
) -> None:
    configure(LOCATION=url.format(port=watch.port, service=SERVICE))
    with pytest.raises(BackendUnavailable, match=says) as caught:
        TaskLock(name, on_unavailable="run").acquire()
    assert not caught.value.down


def test_what_stands_in_a_url() -> None:
    url = (
        "redis+sentinel://me:secret@[::1],b:26380/my%2Fmaster/5?sentinel_username=s&sentinel_password=t%26"
        "&min_other_sentinels=2&socket_timeout=0.2"
    )
    pool: Any = pool_of(url)
    assert pool.service_name == "my/master"
    kwargs = pool.connection_kwargs
    assert (kwargs["username"], kwargs["password"], kwargs["db"]) == ("me", "secret", 5)
    assert kwargs["socket_timeout"] == 0.2
    assert "host" not in kwargs
    manager = pool.sentinel_manager
    assert manager.min_other_sentinels == 2
    nodes = [node.connection_pool.connection_kwargs for node in manager.sentinels]
    assert [(node["host"], node["port"]) for node in nodes] == [("::1", 26379), ("b", 26380)]
    assert {(node["username"], node["password"]) for node in nodes} == {("s", "t&")}
    assert not issubclass(pool.connection_class, ENCRYPTED)
    database = database_of(url)
    assert str(database) == "database 5 of service my/master"
    assert database.same(database_of("redis+sentinel://b:26380/my%2Fmaster/5"))
    assert not database.same(database_of("redis+sentinel://b:26380/my%2Fmaster/6"))


@pytest.mark.parametrize(("more", "encrypted"), [("", True), ("&sentinel_ssl=false", False)])
def test_a_url_that_asks_for_tls(more: str, encrypted: bool) -> None:
    url = f"rediss+sentinel://a/locks/0?ssl_ca_certs=/ca.pem{more}"
    pool: Any = pool_of(url)
    assert issubclass(pool.connection_class, ENCRYPTED)
    assert pool.connection_kwargs["ssl_ca_certs"] == "/ca.pem"
    (node,) = pool.sentinel_manager.sentinels
    assert issubclass(node.connection_pool.connection_class, ENCRYPTED) is encrypted
    assert node.connection_pool.connection_kwargs.get("ssl_ca_certs") == ("/ca.pem" if encrypted else None)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis+sentinel://a:26379", "must name a service"),
        ("redis+sentinel://a/locks/zero", "number of a database"),
        ("redis+sentinel://a:port/locks", "'a:port', which is no Sentinel"),
        ("redis+sentinel://:secret@/locks", "'', which is no Sentinel"),
        ("redis+sentinel://a/locks?sentinel_pasword=x", "unknown option sentinel_pasword"),
    ],
)
def test_a_url_that_is_none(url: str, said: str, configure: Any) -> None:
    configure(LOCATION=url)
    (problem,) = check_backend()
    assert (problem.id, problem.level) == ("tasklock.E002", checks.ERROR)
    assert said in problem.msg
    assert "secret" not in problem.msg


def test_no_sentinel_at_all(alias: Any, name: str) -> None:
    """Told as soon as with a server: no node has more than its share of the time."""
    alias(free_port(), free_port(), free_port())
    started = time.monotonic()
    with pytest.raises(BackendUnavailable, match="MasterNotFound"):
        TaskLock(name).acquire()
    assert time.monotonic() - started < 10


def test_tls_to_the_primary_is_kept(watch: Watched, alias: Any, settings: Any) -> None:
    """Asked for in the alias' URL: the connections of the locks are made that way too."""
    alias(watch.port)
    settings.CACHES = {"locks": {**settings.CACHES["locks"], "LOCATION": f"rediss://{SERVICE}/3"}}
    options = settings.CACHES["locks"]["OPTIONS"]
    options["CONNECTION_POOL_KWARGS"] = {"connection_class": redis.sentinel.SentinelManagedSSLConnection}
    assert issubclass(pool_of("locks").connection_class, redis.SSLConnection)


def test_a_failover(watch: Watched, configure: Any, name: str) -> None:
    """Gold standards 8.34 and 8.36: verbs on connections to the old primary go to the new one, whichever is first."""
    configure(LOCATION=watch.url(3))
    before, ask, old = TaskLock(name), an_ask(f"{name}:1"), watch.primary_port()
    assert before.acquire() is True
    with watch.replica(3) as store:  # what has not got there yet would be lost, as with any failover
        eventually(lambda: store.exists(f"task_lock:{name}"))
    watch.fail_over()
    assert watch.primary_port() != old
    with watch.primary(3) as store:
        granted(get_backend().acquire(ask))
        assert token_in(store, ask.name) == ask.token
        assert get_backend().release(ask.name, ask.token) is Released.RELEASED
        assert before.release() is Released.RELEASED
        assert not store.exists(f"task_lock:{name}")


def test_a_demoted_primary_says_so_and_the_new_one_is_asked(watch: Watched, alias: Any, name: str) -> None:
    """Its connections are still open, as where Sentinel could not close them: READONLY, not a lost lock."""
    alias(watch.port)
    lock = TaskLock(name)
    assert lock.acquire() is True
    with watch.primary() as old:
        # Read-only for the moment of a write, then primary again: the same address, another answer.
        old.execute_command("REPLICAOF", "127.0.0.1", str(free_port()))
        try:
            with pytest.raises(BackendUnavailable):
                get_backend().acquire(an_ask(f"{name}:1"))
        finally:
            old.execute_command("REPLICAOF", "NO", "ONE")
    assert lock.release() is Released.RELEASED
