"""From ``LOCATION`` to redis-py connection pools of our own.

Address, database, credentials, TLS and Sentinel are taken from the cache alias or the
URL. Ours are the rest: short timeouts and no retries (every verb here is safe to
repeat and does so itself), bytes in and out whatever the alias decodes, and a pool of
our own, because two aliases with one URL share one in django-redis.
"""

from __future__ import annotations

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

__all__ = ["TIMEOUT", "async_pool", "sync_pool"]

TIMEOUT = 0.9
"""Seconds one attempt may take, to connect or to answer; a verb makes two at the most."""

URL_SCHEMES = ("redis://", "rediss://", "unix://")
# What belongs to the pool or client it was made for, not to the place it talks to.
_NOT_OURS = (
    "retry", "retry_on_timeout", "retry_on_error", "decode_responses", "encoding", "encoding_errors", "connection_pool",
    "parser_class", "cache", "cache_config", "event_dispatcher", "maint_notifications_config",
    "maint_notifications_pool_handler", "oss_cluster_maint_notifications_handler", "max_connections", "timeout",
    "connection_class", "protocol", "redis_connect_func", "health_check_interval", "socket_keepalive",
)  # fmt: skip


def sync_pool(location: str) -> redis.ConnectionPool:
    """A pool for threads. ``ImproperlyConfigured`` if ``location`` is no Redis."""
    source = _source(location)
    kwargs = _kwargs(source.connection_kwargs, Retry(NoBackoff(), 0))
    if isinstance(source, redis.sentinel.SentinelConnectionPool):
        return redis.sentinel.SentinelConnectionPool(
            source.service_name, source.sentinel_manager, is_master=True, check_connection=False, **kwargs
        )
    return redis.ConnectionPool(connection_class=source.connection_class, **kwargs)


def async_pool(location: str) -> redis.asyncio.ConnectionPool:
    """A pool for one event loop."""
    source = _source(location)
    kwargs = _kwargs(source.connection_kwargs, AsyncRetry(NoBackoff(), 0))
    if isinstance(source, redis.sentinel.SentinelConnectionPool):
        manager = source.sentinel_manager
        nodes = [
            (sentinel.connection_pool.connection_kwargs["host"], sentinel.connection_pool.connection_kwargs["port"])
            for sentinel in manager.sentinels
        ]
        twin = redis.asyncio.sentinel.Sentinel(nodes, sentinel_kwargs=dict(manager.sentinel_kwargs))
        return redis.asyncio.sentinel.SentinelConnectionPool(source.service_name, twin, is_master=True, **kwargs)
    kind: type[redis.asyncio.Connection] = redis.asyncio.Connection
    if issubclass(source.connection_class, redis.SSLConnection):
        kind = redis.asyncio.SSLConnection
    elif issubclass(source.connection_class, redis.UnixDomainSocketConnection):
        kind = redis.asyncio.UnixDomainSocketConnection  # type: ignore[assignment]
    return redis.asyncio.ConnectionPool(connection_class=kind, **kwargs)


def _source(location: str) -> redis.ConnectionPool:
    if location.startswith(URL_SCHEMES):
        return redis.ConnectionPool.from_url(location)
    if location not in getattr(django_settings, "CACHES", {}):
        raise ImproperlyConfigured(f"TASKLOCK['LOCATION'] {location!r} is neither a CACHES alias nor a redis:// URL")
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
        raise ImproperlyConfigured(f"TASKLOCK['LOCATION'] {location!r} uses {type(pool).__name__}, which is not supported")
    return pool


def _kwargs(given: Mapping[str, Any], retry: object) -> dict[str, Any]:
    kwargs = {key: value for key, value in given.items() if key not in _NOT_OURS}
    for key in ("socket_timeout", "socket_connect_timeout"):
        kwargs[key] = min(kwargs.get(key) or TIMEOUT, TIMEOUT)
    kwargs["socket_keepalive"] = True
    kwargs["protocol"] = 2
    kwargs["max_connections"] = 10_000  # as many as run at once; kept idle: as many as ever ran at once
    kwargs["retry"] = retry
    return kwargs
