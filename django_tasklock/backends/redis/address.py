"""Which Redis database a setting means, without asking anybody.

Two settings mean the same one however they are written: a URL, an alias of django-redis or
of Django's own cache, a Sentinel service, a socket.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import redis
import redis.sentinel
from django.conf import settings as django_settings
from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured

from django_tasklock.backends.redis.location import sync_pool

_HERE = ("127.0.0.1", "::1", "")


@dataclass(frozen=True)
class RedisDatabase:
    """One database of one server, or of one service that Sentinels watch. ``str()`` has no password in it."""

    server: str
    database: int
    sentinels: frozenset[str] = frozenset()

    def same(self, other: RedisDatabase) -> bool:
        """Tell whether both are one database, as far as names tell."""
        if (self.server, self.database) != (other.server, other.database):
            return False
        return bool(self.sentinels & other.sentinels) or not (self.sentinels or other.sentinels)

    def __str__(self) -> str:
        return f"database {self.database} of {'service ' if self.sentinels else ''}{self.server}"


def database_of(location: str) -> RedisDatabase:
    """Return where ``location`` (an alias or a URL) leads.

    ``ImproperlyConfigured`` if that is no Redis that can be asked.
    """
    try:
        pool = sync_pool(location)
    except ImproperlyConfigured:
        _forget(location)
        raise
    except (ValueError, TypeError, ImportError) as error:  # its text may have a part of the URL, password included
        _forget(location)
        raise ImproperlyConfigured(
            f"TASKLOCK['LOCATION'] does not lead to a Redis ({type(error).__name__}): are its URL,"
            " redis://host:port/database, and its OPTIONS whole?"
        ) from error
    kwargs = pool.connection_kwargs
    database = int(kwargs.get("db") or 0)
    if isinstance(pool, redis.sentinel.SentinelConnectionPool):
        nodes = (client.connection_pool.connection_kwargs for client in pool.sentinel_manager.sentinels)
        return RedisDatabase(str(pool.service_name), database, frozenset(_server(node) for node in nodes))
    return RedisDatabase(_server(kwargs), database)


def _forget(alias: str) -> None:
    # Some versions of django-redis cannot close what they could not make, and Django closes all it has.
    with contextlib.suppress(AttributeError):
        del caches[alias]


def databases_of(alias: str) -> list[RedisDatabase]:
    """Return every database that ``clear()`` of this cache alias empties; none if the alias is no Redis, or no good
    one.
    """
    given = django_settings.CACHES[alias]
    if "redis" not in str(given.get("BACKEND", "")).lower():
        return []
    try:
        return [database_of(alias)]
    except ImproperlyConfigured:  # several servers, or a client of another kind: what its addresses say
        return [database for url in _urls(given.get("LOCATION")) for database in _read(url)]


def _urls(location: object) -> list[str]:
    if isinstance(location, str):
        return [url for url in location.replace(";", ",").split(",") if url]
    return [url for url in location if isinstance(url, str)] if isinstance(location, Iterable) else []


def _read(url: str) -> list[RedisDatabase]:
    try:
        kwargs = redis.ConnectionPool.from_url(url).connection_kwargs
        return [RedisDatabase(_server(kwargs), int(kwargs.get("db") or 0))]
    except (ValueError, TypeError):
        host = urlsplit(url if "//" in url else f"//{url}").hostname  # "host:port:database", of older clients
        return [RedisDatabase(_server({"host": host}), 0)] if host and url.count(":") < 2 else []


def _server(kwargs: Mapping[str, Any]) -> str:
    if "path" in kwargs:
        return str(kwargs["path"])
    host = str(kwargs.get("host") or "").lower()
    return f"{'localhost' if host in _HERE else host}:{kwargs.get('port') or 6379}"
