"""Independent Redis servers, of which a majority decides: started when they are first asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import redis

from django_tasklock.backends.quorum import QuorumBackend, asking
from django_tasklock.conf import QUORUM, Settings
from tests.support.redis_server import RedisServer

__all__ = ["PATIENCE", "backend", "be_patient", "clear", "of", "servers", "values_of"]

PATIENCE = 5.0
"""Seconds for which an instance may be silent in a test that is not about silent ones."""

_servers: list[RedisServer] = []


def servers(number: int) -> list[RedisServer]:
    """So many servers, the same for all tests of this process. They are to be left running, and empty."""
    while len(_servers) < number:
        _servers.append(RedisServer().start())
    return _servers[:number]


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for instances, as a machine that stalls is not one that is silent."""
    monkeypatch.setattr(asking, "LIMIT", PATIENCE)
    monkeypatch.setattr(asking, "SHORT", PATIENCE)


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
