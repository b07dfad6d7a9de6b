"""Where a Redis can be found, and as whom it can be asked."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured

from django_tasklock import BackendUnavailable, TaskLock
from django_tasklock.backends import get_backend
from django_tasklock.backends.redis import RedisBackend
from django_tasklock.backends.redis.location import pool_of
from django_tasklock.types import Released
from tests.support.exercise import HALVES, KINDS, Exercise, exercise
from tests.support.proxy import Proxy
from tests.support.redis_server import RedisServer
from tests.support.tls import self_signed

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = pytest.mark.redis


@pytest.fixture(scope="module")
def socket_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the module's server listens besides its port."""
    return tmp_path_factory.mktemp("redis") / "redis.sock"


@pytest.fixture(scope="module")
def server(socket_path: Path) -> Iterator[RedisServer]:
    """One server for the module."""
    with RedisServer(None, "--unixsocket", str(socket_path)) as running:
        yield running


@pytest.fixture
def database(server: RedisServer) -> Iterator[Callable[[int], redis.Redis]]:
    """The server's databases, asked directly."""
    with contextlib.ExitStack() as stack:
        yield lambda number: stack.enter_context(redis.Redis(port=server.port, db=number))


# --- by URL


@HALVES
@pytest.mark.parametrize("form", ["redis://127.0.0.1:{port}/5", "redis://127.0.0.1:{port}?db=5"])
def test_url_with_a_database_number(
    server: RedisServer, configure: Any, database: Any, name: str, form: str, exercised: Exercise
) -> None:
    configure(LOCATION=form.format(port=server.port))
    database(5).flushdb()
    exercised(name, database(5))
    assert database(5).exists("task_lock#fence")
    assert not database(0).exists("task_lock#fence")


@pytest.mark.parametrize("query", ["", "?db=6"])
def test_unix_socket(socket_path: Path, server: Any, configure: Any, database: Any, name: str, query: str) -> None:
    configure(LOCATION=f"unix://{socket_path}{query}")
    exercise(name, database(6 if query else 0))


@pytest.fixture(scope="module")
def tls(server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Proxy, Path]]:
    """The module's server behind TLS, and the certificate to trust."""
    certificate, context = self_signed(tmp_path_factory.mktemp("tls"))
    with Proxy(server.url, tls=context) as between:
        yield between, certificate


@HALVES
def test_tls(tls: tuple[Proxy, Path], configure: Any, database: Any, name: str, exercised: Exercise) -> None:
    proxy, certificate = tls
    assert proxy.url.startswith("rediss://")
    configure(LOCATION=f"{proxy.url}?ssl_ca_certs={certificate}")
    exercised(name, database(0))


def test_tls_to_somebody_unknown(tls: tuple[Proxy, Path], configure: Any, name: str) -> None:
    configure(LOCATION=tls[0].url)
    with pytest.raises(BackendUnavailable, match=r"(?i)certificate|Error 1 connecting"):
        TaskLock(name).acquire()


# --- by CACHES alias

ALIASES = pytest.mark.parametrize("kind", KINDS)


@ALIASES
def test_alias_that_decodes(server: RedisServer, alias: Any, database: Any, name: str, kind: str) -> None:
    """And has retries, timeouts and a protocol of its own: those are the cache's."""
    options = {"decode_responses": True, "socket_timeout": 30, "protocol": 3, "health_check_interval": 1}
    if kind == "django-redis":
        options = {"CONNECTION_POOL_KWARGS": {**options, "retry_on_timeout": True}}
    alias(kind, f"redis://127.0.0.1:{server.port}/7", options)
    assert isinstance(get_backend(), RedisBackend)
    exercise(name, database(7))


@ALIASES
def test_alias_that_pickles_and_compresses(
    server: RedisServer, alias: Any, database: Any, name: str, kind: str
) -> None:
    """What the cache does to its values is no matter of ours."""
    options = {"serializer": "django.core.cache.backends.redis.RedisSerializer"}
    if kind == "django-redis":
        options = {
            "SERIALIZER": "django_redis.serializers.json.JSONSerializer",
            "COMPRESSOR": "django_redis.compressors.zlib.ZlibCompressor",
            "IGNORE_EXCEPTIONS": True,
        }
    alias(kind, f"redis://127.0.0.1:{server.port}/7", options)
    assert isinstance(get_backend(), RedisBackend)
    exercise(name, database(7))


@ALIASES
def test_keys_do_not_depend_on_the_cache_s(
    server: RedisServer, alias: Any, database: Any, name: str, kind: str
) -> None:
    """A deploy that raises VERSION must not hand every lock out twice."""
    url = f"redis://127.0.0.1:{server.port}/7"
    alias(kind, url, KEY_PREFIX="site", VERSION=1, TIMEOUT=5)
    assert isinstance(get_backend(), RedisBackend)
    exercise(name, database(7))
    lock = TaskLock(name)
    assert lock.acquire() is True
    alias(kind, url, KEY_PREFIX="elsewhere", VERSION=2)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(TaskLock(name).acquire).result(10) is False
    assert lock.release() is Released.RELEASED


@ALIASES
def test_two_aliases_with_one_url_share_no_connection(
    server: RedisServer, settings: Any, configure: Any, database: Any, name: str, kind: str
) -> None:
    """django-redis has one pool per URL: what the cache does to its connections must not reach the locks'."""
    location = f"redis://127.0.0.1:{server.port}/7"
    settings.CACHES = {"locks": {"BACKEND": KINDS[kind], "LOCATION": location}}
    configure(LOCATION="locks")
    caches["locks"].set("something", "else", 60)
    with TaskLock(name) as lock:
        connection = get_backend().client.take()
        get_backend().client.keep(connection)
        ours = connection._sock.getsockname()
        caches["locks"].get("something")
        caches["locks"].close()
        assert "{}:{}".format(*ours) in {found["addr"] for found in database(0).client_list()}
        assert lock.held


def test_pools_have_short_timeouts_and_no_retries(server: RedisServer, alias: Any) -> None:
    for kind in KINDS:
        alias(kind, f"redis://127.0.0.1:{server.port}/7?socket_timeout=30")
        connection: Any = pool_of("locks").make_connection()
        assert connection.socket_timeout < 1
        assert connection.socket_connect_timeout < 1
        assert connection.retry._retries == 0
    shorter: Any = pool_of(f"{server.url}?socket_timeout=0.2").make_connection()
    assert shorter.socket_timeout == 0.2


@pytest.mark.parametrize(
    ("location", "says"),
    [("nowhere", "neither a CACHES alias nor"), ("locmem", "no single Redis"), ("db", "no single Redis")],
)
def test_a_location_that_is_no_redis(location: str, says: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=says):
        pool_of(location)
