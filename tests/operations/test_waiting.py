"""Who waits for a lock, by name."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from django_tasklock import operations
from django_tasklock.backends import get_backend
from django_tasklock.types import AcquireRequest, Grant
from tests.support.stores import an_ask, clear, granted, stores


@pytest.fixture(params=stores("redis", "memory"))
def store(request: Any, settings: Any) -> str:
    """Stores whose waiters stand in a queue."""
    if request.param == "memory":
        settings.TASKLOCK = {"BACKEND": "django_tasklock.backends.memory.MemoryBackend"}
    clear(request.param)
    return str(request.param)


def somebody(number: int) -> str:
    """A process far away that runs a task."""
    known = {"host": "far", "pid": number, "boot": f"boot{number}", "task": "videos.process", "task_id": f"id-{number}"}
    return json.dumps(known, separators=(",", ":"))


def take(name: str, number: int) -> None:
    """Give it the lock."""
    granted(get_backend().acquire(an_ask(name, f"{number:032x}", holder=somebody(number))))


@contextmanager
def waiting(name: str, *numbers: int) -> Iterator[None]:
    """These processes wait for it, in this order."""
    waiters = [
        get_backend().waiter(AcquireRequest(name, f"{number:032x}", 60_000, 60_000, somebody(number)))
        for number in numbers
    ]
    try:
        for waiter in waiters:
            assert not isinstance(waiter.acquire(), Grant)
        yield
    finally:
        for waiter in waiters:
            waiter.leave()


def test_who_waits_in_order(store: str) -> None:
    """Who, since when by the store's clock, which task; the rest is counted."""
    take("a", 1)
    with waiting("a", 3, 2, 4):
        page = operations.list_waiters("a")
        assert [one.task_id for one in page.waiters] == ["id-3", "id-2", "id-4"]
        assert (page.total, page.known) == (3, True)
        first = page.waiters[0]
        assert first.holder == "far:3 (videos.process[id-3])"
        assert (first.task, first.present) == ("videos.process", True)
        assert 0 <= first.waited < 30
        assert abs(first.since.timestamp() - time.time()) < 30
        assert len(operations.list_waiters("a", 2).waiters) == 2
        assert operations.list_waiters("a", 2).total == 3
    assert operations.list_waiters("a").waiters == []
