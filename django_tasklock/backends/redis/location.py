"""From ``LOCATION`` to redis-py connection pools, of which only the way to open a connection is used; and the database
that a setting refers to, without connecting.

Address, database, credentials, TLS and Sentinel come from the cache alias or the URL.
The rest is ours: short timeouts and no retries (every operation is safe to repeat and
is retried by ``client``), bytes in and out whatever the alias decodes, and a separate
pool, because in django-redis two aliases with one URL share a pool.

Two settings can refer to the same database in different forms: a URL, an alias of django-redis or of Django's own
cache, a Sentinel service, a socket.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import redis
import redis.sentinel
from django.conf import settings as django_settings
from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from django_tasklock.backends.contract.refusals import MISTAKES
from django_tasklock.exceptions import TaskLockError
from django_tasklock.texts import without_password

TIMEOUT = 0.9
"""Seconds that one attempt may take to connect, or to receive a reply; an operation makes two attempts at most."""

URL_SCHEMES = ("redis://", "rediss://", "unix://")
SENTINEL_SCHEMES = ("redis+sentinel://", "rediss+sentinel://")
SENTINEL_PORT = 26379
SENTINEL_SHAPE = "redis+sentinel://user:password@host:26379,host2:26379/service/0"
_QUERY_PREFIX = "sentinel_"
# Options of the pool or client they were made for, not of the server's address.
_DROPPED_OPTIONS = (
    "retry", "retry_on_timeout", "retry_on_error", "decode_responses", "encoding", "encoding_errors", "connection_pool",
    "parser_class", "cache", "cache_config", "event_dispatcher", "max_connections", "timeout", "connection_class",
    "protocol", "redis_connect_func", "health_check_interval", "socket_keepalive",
)  # fmt: skip
_DROPPED_PREFIXES = ("maint", "orig_", "oss_")  # redis-py's options for maintenance notifications, of protocol 3
_Kwargs = dict[str, Any]
_HERE = ("127.0.0.1", "::1", "")


def pools(pool: Any) -> list[Any]:
    """Return ``pool`` and the pools of its Sentinels, which must be closed too."""
    manager = getattr(pool, "sentinel_manager", None)
    return [pool] + [client.connection_pool for client in getattr(manager, "sentinels", ())]


def pool_of(location: str) -> redis.ConnectionPool:
    """Return a pool for ``location``, a cache alias or a URL. ``ImproperlyConfigured`` if that is no Redis."""
    try:
        return _pool(location)
    except ImproperlyConfigured:
        _discard_cache(location)
        raise
    except (ValueError, TypeError, ImportError) as error:  # its text may contain the URL's password
        _discard_cache(location)
        raise ImproperlyConfigured(
            f"TASKLOCK['LOCATION'] does not lead to a Redis ({type(error).__name__}): are its URL,"
            " redis://host:port/database, and its OPTIONS whole?"
        ) from error


def check_options(location: str) -> None:
    """Raise ``ImproperlyConfigured`` if no connection can be made with the options of ``location``, whatever answers
    there. Connects to nothing.
    """
    for pool in pools(pool_of(location)):
        try:
            pool.connection_class(**pool.connection_kwargs)
        except (*MISTAKES, RedisError) as error:
            hint = "see its query, or the OPTIONS of its cache alias"
            if "Certificate Requirements" in str(error):
                hint = "write ssl_cert_reqs=none, optional or required: CERT_NONE is Celery's spelling of none"
            what = f"TASKLOCK['LOCATION'] has an option that redis-py refuses: {error}; {hint}"
            raise ImproperlyConfigured(what) from error


def _discard_cache(alias: str) -> None:
    # Some versions of django-redis fail to close a client they could not create, and Django closes all its caches.
    with contextlib.suppress(AttributeError):
        del caches[alias]


def _pool(location: str) -> redis.ConnectionPool:
    source = _source(location)
    retry = Retry(NoBackoff(), 0)
    kwargs = _kwargs(source, retry)
    if isinstance(source, redis.sentinel.SentinelConnectionPool):
        sentinel = redis.sentinel.Sentinel(**_sentinel(source.sentinel_manager, retry))
        tls = issubclass(source.connection_class, redis.SSLConnection)
        return redis.sentinel.SentinelConnectionPool(source.service_name, sentinel, ssl=tls, **kwargs)
    return redis.ConnectionPool(connection_class=source.connection_class, **kwargs)


class UnknownConnection(TaskLockError, ImproperlyConfigured):
    """The connections of ``TASKLOCK["LOCATION"]`` are of a class that this package does not know."""


def _source(location: str) -> redis.ConnectionPool:
    pool = _named_pool(location)
    kind = pool.connection_class
    if kind.__module__.partition(".")[0] != "redis":  # where it leads is not known
        raise UnknownConnection(
            f"TASKLOCK['LOCATION'] {without_password(location)!r} makes connections of the class {kind.__module__}."
            f"{kind.__qualname__}, which is not one of redis-py's: locks cannot use it. In tests, use the memory store:"
            " TASKLOCK = {'BACKEND': 'django_tasklock.backends.memory.MemoryBackend'}; otherwise name a redis:// URL"
        )
    return pool


def _named_pool(location: str) -> redis.ConnectionPool:
    if location.startswith(URL_SCHEMES):
        database = "" if location.startswith("unix:") else urlsplit(location).path.strip("/")
        if database and not database.isdigit():  # redis-py would take database 0
            raise ImproperlyConfigured(
                f"TASKLOCK['LOCATION'] {without_password(location)!r} must end with the number of a database, not with"
                f" {database!r}: redis://host:port/1"
            )
        return redis.ConnectionPool.from_url(location)
    if location.startswith(SENTINEL_SCHEMES):
        return sentinel_pool(location)
    if location not in getattr(django_settings, "CACHES", {}):
        raise ImproperlyConfigured(
            f"TASKLOCK['LOCATION'] {without_password(location)!r} is neither a CACHES alias nor a redis:// URL"
        )
    cache: Any = caches[location]
    try:
        if hasattr(cache, "client"):  # django-redis
            client = cache.client.get_client(write=True)
        else:  # Django's own
            client = cache._cache.get_client(None, write=True)
        pool = client.connection_pool
    except (AttributeError, NotImplementedError) as error:
        raise ImproperlyConfigured(
            f"TASKLOCK['LOCATION'] {location!r} is a {type(cache).__name__}, which has no single Redis primary"
            " that locks could live on; name a redis:// URL instead"
        ) from error
    if not isinstance(pool, redis.ConnectionPool):
        raise ImproperlyConfigured(
            f"TASKLOCK['LOCATION'] {location!r} uses {type(pool).__name__}, which is not supported"
        )
    return pool


def _kwargs(source: redis.ConnectionPool, retry: object) -> _Kwargs:
    kwargs = _connection_options(source.connection_kwargs, retry, TIMEOUT)
    if issubclass(source.connection_class, redis.UnixDomainSocketConnection):
        del kwargs["socket_keepalive"]
    return kwargs


def _connection_options(given: Mapping[str, Any], retry: object, timeout: float) -> _Kwargs:
    ours = (key for key in given if key not in _DROPPED_OPTIONS and not key.startswith(_DROPPED_PREFIXES))
    kwargs = {key: given[key] for key in ours}
    for key in ("socket_timeout", "socket_connect_timeout"):
        kwargs[key] = min(kwargs.get(key) or timeout, timeout)
    return {**kwargs, "socket_keepalive": True, "protocol": 2, "retry": retry}


def _sentinel(manager: redis.sentinel.Sentinel, retry: object) -> _Kwargs:
    """Return the options of a Sentinel client like ``manager``, for which all its nodes together take at most
    ``TIMEOUT``.
    """
    clients = [client.connection_pool.connection_kwargs for client in manager.sentinels]
    kwargs: _Kwargs = {
        "sentinels": [(given["host"], given["port"]) for given in clients],
        "sentinel_kwargs": _connection_options(manager.sentinel_kwargs, retry, TIMEOUT / len(clients)),
        "min_other_sentinels": manager.min_other_sentinels,
    }
    if address := getattr(manager, "_force_master_ip", None):  # redis-py 5.1 and later
        kwargs["force_master_ip"] = address
    return kwargs


def sentinel_pool(url: str) -> redis.sentinel.SentinelConnectionPool:
    """Return a pool that follows the primary of the service that a URL names. Raises ``ImproperlyConfigured``.

    User and password of the URL are for the servers. The query may have ``sentinel_username`` and
    ``sentinel_password``, for the Sentinels, and ``min_other_sentinels``, how many other Sentinels one must see for its
    reply to be trusted; all else is as in a ``redis://`` URL. ``rediss+sentinel://`` uses TLS to servers and Sentinels;
    with ``sentinel_ssl=false`` to the servers alone.
    """
    scheme, _, rest = url.partition("://")
    servers = re.split("[/?#]", rest, maxsplit=1)[0]
    # Parsed without the servers: newer Pythons reject an IPv6 address next to another host.
    parts = urlsplit(f"{scheme}://{rest.removeprefix(servers)}")
    tls = scheme == "rediss+sentinel"
    credentials, at, hosts = servers.rpartition("@")
    service, _, database = parts.path.strip("/").partition("/")
    if not service or not (database or "0").isdigit():
        raise ImproperlyConfigured(
            f"TASKLOCK['LOCATION'] must name a service, and may name the number of a database: {SENTINEL_SHAPE}"
        )
    query = dict(parse_qsl(parts.query))
    min_others = query.pop("min_other_sentinels", "0")
    if not min_others.isdigit():
        raise ImproperlyConfigured(f"min_other_sentinels in TASKLOCK['LOCATION'] must be a number, not {min_others!r}")
    encrypted = query.pop("sentinel_ssl", "true").lower() not in ("false", "0", "no") and tls
    options = {key.removeprefix(_QUERY_PREFIX): query.pop(key) for key in list(query) if key.startswith(_QUERY_PREFIX)}
    if unknown := set(options) - {"username", "password"}:
        raise ImproperlyConfigured(
            f"TASKLOCK['LOCATION'] has the unknown option {_QUERY_PREFIX}{min(unknown)}: known are sentinel_username,"
            " sentinel_password and sentinel_ssl"
        )
    # redis-py parses the rest, from a URL of a single server.
    single = f"{'rediss' if tls else 'redis'}://{credentials}{at}localhost/{database}?{urlencode(query)}"
    kwargs = dict(redis.ConnectionPool.from_url(single).connection_kwargs)
    del kwargs["host"]
    if encrypted:
        options |= {"ssl": True} | {key: value for key, value in kwargs.items() if key.startswith("ssl_")}
    nodes = [_node(node) for node in hosts.split(",")]
    manager = redis.sentinel.Sentinel(nodes, min_other_sentinels=int(min_others), sentinel_kwargs=options)
    return redis.sentinel.SentinelConnectionPool(unquote(service), manager, ssl=tls, **kwargs)


def _node(text: str) -> tuple[str, int]:
    try:
        node = urlsplit(f"//{text}")
        host, port = node.hostname, node.port
    except ValueError:  # the port is invalid
        host = port = None
    if not host:
        raise ImproperlyConfigured(f"TASKLOCK['LOCATION'] names {text!r}, which is no Sentinel: {SENTINEL_SHAPE}")
    return host, port or SENTINEL_PORT


@dataclass(frozen=True)
class RedisDatabase:
    """One database of a server, or of a service monitored by Sentinels. ``str()`` contains no password."""

    server: str
    database: int
    sentinels: frozenset[str] = frozenset()

    def same(self, other: RedisDatabase) -> bool:
        """Tell whether both are the same database, as far as can be seen from their addresses."""
        if (self.server, self.database) != (other.server, other.database):
            return False
        return bool(self.sentinels & other.sentinels) or not (self.sentinels or other.sentinels)

    def __str__(self) -> str:
        return f"database {self.database} of {'service ' if self.sentinels else ''}{self.server}"


def database_of(location: str) -> RedisDatabase:
    """Return the database that ``location`` (an alias or a URL) refers to.

    ``ImproperlyConfigured`` if that is not a Redis that locks can use.
    """
    pool = pool_of(location)
    kwargs = pool.connection_kwargs
    database = int(kwargs.get("db") or 0)
    if isinstance(pool, redis.sentinel.SentinelConnectionPool):
        nodes = (client.connection_pool.connection_kwargs for client in pool.sentinel_manager.sentinels)
        return RedisDatabase(str(pool.service_name), database, frozenset(_server(node) for node in nodes))
    return RedisDatabase(_server(kwargs), database)


def databases_of(alias: str) -> list[RedisDatabase]:
    """Return every database that ``clear()`` of this cache alias empties; none if it is not a (usable) Redis."""
    given = django_settings.CACHES[alias]
    if "redis" not in str(given.get("BACKEND", "")).lower():
        return []
    try:
        return [database_of(alias)]
    except ImproperlyConfigured:  # several servers, or a client of another kind: use its addresses
        return [database for url in _urls(given.get("LOCATION")) for database in _databases_at(url)]


def _urls(location: object) -> list[str]:
    if isinstance(location, str):
        return [url for url in location.replace(";", ",").split(",") if url]
    return [url for url in location if isinstance(url, str)] if isinstance(location, Iterable) else []


def _databases_at(url: str) -> list[RedisDatabase]:
    try:
        kwargs = redis.ConnectionPool.from_url(url).connection_kwargs
        return [RedisDatabase(_server(kwargs), int(kwargs.get("db") or 0))]
    except (ValueError, TypeError):
        host = urlsplit(url if "//" in url else f"//{url}").hostname  # "host:port:database" is a form of older clients
        return [RedisDatabase(_server({"host": host}), 0)] if host and url.count(":") < 2 else []


def _server(kwargs: Mapping[str, Any]) -> str:
    if "path" in kwargs:
        return str(kwargs["path"])
    host = str(kwargs.get("host") or "").lower()
    return f"{'localhost' if host in _HERE else host}:{kwargs.get('port') or 6379}"
