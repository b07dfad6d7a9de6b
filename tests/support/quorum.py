"""Independent Redis servers, of which a majority decides: started when they are first asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis

from django_tasklock.backends.quorum import QuorumBackend
from django_tasklock.conf import QUORUM, Settings
from tests.support.redis_server import RedisServer

__all__ = ["backend", "clear", "of", "servers", "values_of"]

_servers: list[RedisServer] = []


def servers(number: int) -> list[RedisServer]:
    """So many servers, the same for all tests of this process. They are to be left running, and empty."""
    while len(_servers) < number:
        _servers.append(RedisServer().start())
    return _servers[:number]


def of(urls: Sequence[str], **more: Any) -> QuorumBackend:
    """A backend on these instances."""
    return QuorumBackend(Settings(BACKEND=QUORUM, LOCATION=tuple(urls), **more))


def backend(number: int, **more: Any) -> QuorumBackend:
    """A backend on so many instances."""
    return of([server.url for server in servers(number)], **more)


def clear(number: int) -> None:
    """Let all of them lose their data."""
    for server in servers(number):
        with redis.Redis.from_url(server.url) as client:
            client.flushall()


def values_of(name: str, urls: Sequence[str]) -> list[bytes | None]:
    """What each instance has of a lock."""
    found = []
    for url in urls:
        with redis.Redis.from_url(url) as client:
            found.append(client.get(f"task_lock:{name}"))
    return found
