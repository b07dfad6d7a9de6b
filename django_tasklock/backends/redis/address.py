"""The Redis database that a setting refers to, derived without connecting.

Two settings can refer to the same database in different forms: a URL, an alias of
django-redis or of Django's own cache, a Sentinel service, a socket.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import redis
import redis.sentinel
from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured

from django_tasklock.backends.redis.location import sync_pool

_HERE = ("127.0.0.1", "::1", "")


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
    pool = sync_pool(location)
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
