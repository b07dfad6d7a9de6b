"""From ``redis+cluster://host:port,host:port`` to connection pools, one for each node."""

from __future__ import annotations

from typing import Any, NamedTuple

import redis
import redis.asyncio
from django.core.exceptions import ImproperlyConfigured

from django_tasklock.backends.redis.location import async_pool, sync_pool
from django_tasklock.texts import without_password

SCHEMES = {"redis+cluster": "redis", "rediss+cluster": "rediss"}
"""The URL scheme of a cluster, and of each of its nodes."""

Address = tuple[str, int]


class Source:
    """The cluster that ``LOCATION`` names: its first nodes, and how to connect to any node."""

    def __init__(self, location: str) -> None:
        self.urls = urls_of(location)
        self._pool = _checked(location, self.urls[0])
        self.starts: list[Address] = []
        for url in self.urls:
            kwargs = _checked(location, url).connection_kwargs
            self.starts.append((str(kwargs.get("host") or "localhost"), int(kwargs.get("port") or 6379)))

    def pool(self, address: Address, longest: float | None = None) -> redis.ConnectionPool:
        """Return a pool for threads. ``longest``: timeout in seconds, of each step; ``None``: that of the URL."""
        return redis.ConnectionPool(
            connection_class=self._pool.connection_class, **_at(self._pool.connection_kwargs, address, longest)
        )

    def async_pool(self, address: Address) -> redis.asyncio.ConnectionPool:
        """Return a pool for one event loop."""
        pool = async_pool(self.urls[0])
        return redis.asyncio.ConnectionPool(
            connection_class=pool.connection_class, **_at(pool.connection_kwargs, address, None)
        )


def urls_of(location: str) -> list[str]:
    """Return a URL for each node that ``location`` names. Raises ``ImproperlyConfigured``."""
    scheme, found, rest = location.partition("://")
    ends = min((end for mark in "/?" if (end := rest.find(mark)) >= 0), default=len(rest))
    user, at, hosts = rest[:ends].rpartition("@")
    if scheme not in SCHEMES or not found or not all(hosts.split(",")):
        raise ImproperlyConfigured(
            f"TASKLOCK['LOCATION'] {without_password(location)!r} does not name nodes of a Redis Cluster: write"
            " redis+cluster://host:port,host:port or, with TLS, rediss+cluster://..."
        )
    return [f"{SCHEMES[scheme]}://{user}{at}{host}{rest[ends:]}" for host in hosts.split(",")]


def _checked(location: str, url: str) -> redis.ConnectionPool:
    try:
        pool = sync_pool(url)
    except (ValueError, TypeError) as error:  # its text may contain a part of the URL
        raise ImproperlyConfigured(
            f"TASKLOCK['LOCATION'] {without_password(location)!r} is not a valid URL of a Redis Cluster"
            f" ({type(error).__name__}): redis+cluster://host:port,host:port"
        ) from error
    if pool.connection_kwargs.get("db"):
        raise ImproperlyConfigured(
            f"TASKLOCK['LOCATION'] {without_password(location)!r} names a database, but a Redis Cluster has only one"
        )
    return pool


def _at(kwargs: dict[str, Any], address: Address, longest: float | None) -> dict[str, Any]:
    host, port = address
    limits = {} if longest is None else {"socket_timeout": longest, "socket_connect_timeout": longest}
    return {**kwargs, "host": host, "port": port, **limits}


class Range(NamedTuple):
    """A range of slots, and the nodes that serve it."""

    first: int
    last: int
    primary: Address
    replicas: tuple[Address, ...]


def ranges_in(reply: list[Any], answering: Address) -> list[Range]:
    """Return the ranges in a reply to ``CLUSTER SLOTS``. A node without an address has that of the answering node."""
    return [
        Range(first, last, _address(primary, answering), tuple(_address(replica, answering) for replica in replicas))
        for first, last, primary, *replicas in reply
    ]


def _address(node: list[Any], answering: Address) -> Address:
    host = (node[0] or b"").decode()
    return (answering[0] if host in ("", "?") else host), node[1] or answering[1]
