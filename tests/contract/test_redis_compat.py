"""Where a Redis can be found, and as whom it can be asked."""

from __future__ import annotations

import contextlib
import gc
import os
import secrets
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured

from django_tasklock import BackendUnavailable, TaskLock, task_lock
from django_tasklock.backends import get_backend
from django_tasklock.backends.redis import RedisBackend
from django_tasklock.backends.redis.location import pool_of
from django_tasklock.backends.redis.wake import warn_cannot_subscribe
from django_tasklock.types import Released
from tests.support import environment
from tests.support.exercise import KINDS, exercise
from tests.support.proxy import Proxy
from tests.support.redis_server import RedisServer
from tests.support.stores import an_ask, eventually, granted
from tests.support.tls import self_signed
from tests.support.twins import token_in

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = pytest.mark.redis


@pytest.fixture
def collected() -> Iterator[None]:
    """The sockets that redis-py 5.0 leaves open where its connection fails are gone before the next test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


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


@pytest.mark.parametrize("form", ["redis://127.0.0.1:{port}/5", "redis://127.0.0.1:{port}?db=5"])
def test_url_with_a_database_number(server: RedisServer, configure: Any, database: Any, name: str, form: str) -> None:
    configure(LOCATION=form.format(port=server.port))
    database(5).flushdb()
    exercise(name, database(5))
    assert database(5).exists("task_lock#fence")
    assert not database(0).exists("task_lock#fence")


def test_unix_socket(socket_path: Path, server: Any, configure: Any, database: Any, name: str) -> None:
    configure(LOCATION=f"unix://{socket_path}?db=6")
    exercise(name, database(6))


@pytest.fixture(scope="module")
def tls(server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Proxy, Path]]:
    """The module's server behind TLS, and the certificate to trust."""
    certificate, context = self_signed(tmp_path_factory.mktemp("tls"))
    with Proxy(server.url, tls=context) as between:
        yield between, certificate


def test_tls_to_whom_is_trusted_only(tls: tuple[Proxy, Path], configure: Any, database: Any, name: str) -> None:
    proxy, certificate = tls
    assert proxy.url.startswith("rediss://")
    configure(LOCATION=f"{proxy.url}?ssl_ca_certs={certificate}")
    exercise(name, database(0))
    configure(LOCATION=proxy.url)
    with pytest.raises(BackendUnavailable, match=r"(?i)certificate|Error 1 connecting"):
        TaskLock(name).acquire()


@pytest.mark.usefixtures("collected")
@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("rediss://127.0.0.1:{tls}", "CERTIFICATE_VERIFY_FAILED"),
        ("rediss://127.0.0.1:{tls}?ssl_cert_reqs=CERT_NONE", "Certificate Requirements"),
        ("rediss://127.0.0.1:{tls}?ssl_ca_certs=/nowhere.pem", "No such file"),
        ("redis://127.0.0.1:{tls}", "speaks TLS: write rediss://"),
        ("rediss://127.0.0.1:{port}?ssl_cert_reqs=none", "does not speak TLS: write redis://"),
        ("redis://127.0.0.1:{port}?sokcet_timeout=1", "sokcet_timeout"),
        ("redis://nowhere:{port}", "Name or service not known"),
        ("redis://127.0.0.1:{port}/99", "DB index is out of range"),
        ("unix:///nowhere/redis.sock", "No such file"),
        ("rediss+cluster://127.0.0.1:{tls}", "CERTIFICATE_VERIFY_FAILED"),
    ],
)
def test_what_only_this_client_cannot_do_is_no_outage(
    tls: tuple[Proxy, Path],
    server: RedisServer,
    configure: Any,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    url: str,
    says: str,
) -> None:
    """Other clients are served, and may hold the lock: no body runs without it."""
    resolve = socket.getaddrinfo

    def getaddrinfo(host: str, *more: Any, **options: Any) -> Any:
        if host == "nowhere":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolve(host, *more, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    configure(LOCATION=url.format(tls=tls[0].port, port=server.port), ON_UNAVAILABLE="run")
    ran: list[bool] = []
    work = task_lock(name)(lambda: ran.append(True))
    try:
        raise LookupError("what the caller handles is no reason")
    except LookupError:
        with pytest.raises(BackendUnavailable, match=says) as caught:
            work()
    assert not caught.value.down
    assert not ran


@contextlib.contextmanager
def saying(words: bytes) -> Iterator[str]:
    """The URL of a server that says this to everybody, and closes the connection."""

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                with client:
                    client.sendall(words)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(60)


def test_an_outage_is_one_whatever_the_caller_handles(configure: Any, name: str) -> None:
    with saying(b"") as url:
        configure(LOCATION=url, ON_UNAVAILABLE="run")
        try:
            raise FileNotFoundError(2, "of the caller's own")
        except FileNotFoundError:
            assert task_lock(name)(lambda: "ran")() == "ran"


@pytest.mark.usefixtures("collected")
def test_what_answers_and_is_no_redis(configure: Any, name: str) -> None:
    with saying(b"HTTP/1.0 400 Bad Request\r\n") as url:
        configure(LOCATION=url)
        with pytest.raises(BackendUnavailable, match="HTTP/1.0 400") as caught:
            TaskLock(name, on_unavailable="run").acquire()
        assert not caught.value.down


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


# --- users

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


@pytest.mark.parametrize("by", ["url", "alias"])
def test_a_user_with_the_least_permissions(
    configure: Any, alias: Any, user: Any, store: redis.Redis, name: str, by: str
) -> None:
    """Also with the password beside the URL, where django-redis takes it."""
    url = user("~task_lock:*", "~task_lock#*", "&task_lock#*", *COMMANDS.split())
    if by == "url":
        configure(LOCATION=url)
    else:
        parts = urlsplit(url)
        bare = f"redis://{parts.username}@{parts.hostname}:{parts.port}{parts.path}"
        alias("django-redis", bare, {"PASSWORD": parts.password})
    exercise(name, store)


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
