"""From ``LOCATION`` to redis-py connection pools, of which only the way to open a connection is used.

Address, database, credentials, TLS and Sentinel come from the cache alias or the URL.
The rest is ours: short timeouts and no retries (every operation is safe to repeat and
is retried by ``client``), bytes in and out whatever the alias decodes, and a separate
pool, because in django-redis two aliases with one URL share a pool.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from django.conf import settings as django_settings
from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from django_tasklock.backends.redis.sentinel import SCHEMES as SENTINEL_SCHEMES, sentinel_pool
from django_tasklock.exceptions import TaskLockError
from django_tasklock.texts import without_password

TIMEOUT = 0.9
"""Seconds that one attempt may take to connect, or to receive a reply; an operation makes two attempts at most."""

URL_SCHEMES = ("redis://", "rediss://", "unix://")
# Options of the pool or client they were made for, not of the server's address.
_DROPPED_OPTIONS = (
    "retry", "retry_on_timeout", "retry_on_error", "decode_responses", "encoding", "encoding_errors", "connection_pool",
    "parser_class", "cache", "cache_config", "event_dispatcher", "max_connections", "timeout", "connection_class",
    "protocol", "redis_connect_func", "health_check_interval", "socket_keepalive",
)  # fmt: skip
_DROPPED_PREFIXES = ("maint", "orig_", "oss_")  # redis-py's options for maintenance notifications, of protocol 3
_Kwargs = dict[str, Any]


def pools(pool: Any) -> list[Any]:
    """Return ``pool`` and the pools of its Sentinels, which must be closed too."""
    manager = getattr(pool, "sentinel_manager", None)
    return [pool] + [client.connection_pool for client in getattr(manager, "sentinels", ())]


def sync_pool(location: str) -> redis.ConnectionPool:
    """Return a pool for threads. ``ImproperlyConfigured`` if ``location`` is no Redis."""
    source = _source(location)
    retry = Retry(NoBackoff(), 0)
    kwargs = _kwargs(source, retry)
    if isinstance(source, redis.sentinel.SentinelConnectionPool):
        sentinel = redis.sentinel.Sentinel(**_sentinel(source.sentinel_manager, retry))
        tls = issubclass(source.connection_class, redis.SSLConnection)
        return redis.sentinel.SentinelConnectionPool(source.service_name, sentinel, ssl=tls, **kwargs)
    return redis.ConnectionPool(connection_class=source.connection_class, **kwargs)


def async_pool(location: str) -> redis.asyncio.ConnectionPool:
    """Return a pool for one event loop."""
    source = _source(location)
    retry = AsyncRetry(NoBackoff(), 0)
    kind: type[redis.asyncio.Connection] = redis.asyncio.Connection
    if issubclass(source.connection_class, redis.SSLConnection):
        kind = redis.asyncio.SSLConnection
    elif issubclass(source.connection_class, redis.UnixDomainSocketConnection):
        kind = redis.asyncio.UnixDomainSocketConnection  # type: ignore[assignment]
    kwargs = _supported(_kwargs(source, retry), kind, location)
    if isinstance(source, redis.sentinel.SentinelConnectionPool):
        sentinel = redis.asyncio.sentinel.Sentinel(**_sentinel(source.sentinel_manager, retry))
        tls = kind is redis.asyncio.SSLConnection
        return redis.asyncio.sentinel.SentinelConnectionPool(source.service_name, sentinel, ssl=tls, **kwargs)
    return redis.asyncio.ConnectionPool(connection_class=kind, **kwargs)


class UnknownConnection(TaskLockError, ImproperlyConfigured):
    """The connections of ``TASKLOCK["LOCATION"]`` are of a class that this package does not know."""


def _source(location: str) -> redis.ConnectionPool:
    pool = _named_pool(location)
    kind = pool.connection_class
    if kind.__module__.partition(".")[0] != "redis":  # its counterpart for coroutines is not known, nor where it leads
        raise UnknownConnection(
            f"TASKLOCK['LOCATION'] {without_password(location)!r} makes connections of the class {kind.__module__}."
            f"{kind.__qualname__}, which is not one of redis-py's: locks cannot use it. In tests, use the memory store:"
            " TASKLOCK = {'BACKEND': 'django_tasklock.backends.memory.MemoryBackend'}; otherwise name a redis:// URL"
        )
    return pool


def _named_pool(location: str) -> redis.ConnectionPool:
    if location.startswith(URL_SCHEMES):
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


def _supported(kwargs: _Kwargs, kind: type[redis.asyncio.Connection], location: str) -> _Kwargs:
    """Return the ``kwargs`` that the asyncio client has. ``ImproperlyConfigured`` for a TLS option that it lacks."""
    known: set[str] = set().union(*(inspect.signature(base).parameters for base in kind.__mro__[:-1]))
    for key in kwargs:
        if key.startswith("ssl_") and kwargs[key] and key not in known:
            shown = without_password(location)
            raise ImproperlyConfigured(
                f"TASKLOCK['LOCATION'] {shown!r} has {key}, which the asyncio client of this redis-py does not know"
            )
    return {key: value for key, value in kwargs.items() if key in known}
