"""The store that a contract is about, and what tests ask of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from django_tasklock.backends.contract.locks import LockStore
from django_tasklock.types import AcquireRequest, Busy, Grant, Record

T = TypeVar("T")
SHORT = 120
"""Milliseconds of a lease that is to lapse."""
NAMES = (
    "video:1",
    "Video:1",
    "VIDEO:1",
    "video:1 ",
    "video: 1",
    "video 1",
    "видео:1",
    "vidéo:1",
    "video:1",
    "video:ß",
    "video:ss",
    "影片:1",
    "🎬:1",
    "%s",
    "a{b}c",
    "'; --",
    "x" * 199 + "a",
    "x" * 199 + "b",
    "影" * 200,
    "#",
    "*",
)
"""Names that a store might take for each other, or choke on."""


class StoreContract:
    """The store under test: derive from one or more of the contracts, and say how it is made and emptied."""

    def make(self) -> LockStore:
        """Return a backend of its own, as another process would have it: all of them share one store."""
        raise NotImplementedError(f"{type(self).__name__} needs make(), which returns the backend under test")

    def clear(self) -> None:
        """Lose all data of the store, as a flush does."""
        raise NotImplementedError(f"{type(self).__name__} needs clear(), which empties the store under test")

    @pytest.fixture
    def backend(self) -> Iterator[LockStore]:
        """Yield a backend with an empty store."""
        self.clear()
        backend = self.make()
        yield backend
        backend.close_idle()
        backend.close()


def new_token() -> str:
    """Return a token as locks make them."""
    return os.urandom(16).hex()


def an_ask(
    name: str,
    token: str | None = None,
    *,
    ttl: int = 60_000,
    hold: int = 3_600_000,
    holder: str = "{}",
    limit: int = 1,
) -> AcquireRequest:
    """Return a request for a lock or a permit, by a new holder unless a token is given. Milliseconds."""
    return AcquireRequest(name, token or new_token(), ttl, hold, holder, limit=limit)


def granted(answer: Grant | Busy | None) -> Grant:
    """Return the answer, which must be a grant."""
    assert isinstance(answer, Grant), answer
    return answer


def held(record: Record | None) -> Record:
    """Return what the store has of a lock that must be held."""
    assert record is not None, "nobody has the lock"
    return record


def ttl_of(record: Record | None) -> int:
    """Return milliseconds until its lease ends, which must be known."""
    ttl = held(record).ttl
    assert ttl is not None, "the lock has no expiry"
    return ttl


def eventually(condition: Callable[[], T], seconds: float = 10.0) -> T:
    """Return what ``condition`` returns once that is true; it must be so within ``seconds``."""
    ends = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < ends, f"not so within {seconds} s: {condition}"
        time.sleep(0.003)
    return value


def lapse(backend: LockStore, name: str) -> None:
    """Wait until nobody holds ``name``."""
    eventually(lambda: backend.get(name) is None)
