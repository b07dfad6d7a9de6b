"""The base of all contracts: the store under test, and what is asked of its records."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_tasklock.backends.contract.stores import LockStore
from django_tasklock.types import AcquireRequest, Record
from tests.support.stores import eventually, granted

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
"""Names that a store might confuse with each other, or fail on."""


class StoreContract:
    """The store under test. Derive a test class from one or more contracts, and define ``make`` and ``clear``."""

    def make(self) -> LockStore:
        """Return a new backend, as another process would have. All backends that it returns share one store."""
        raise NotImplementedError(f"{type(self).__name__} needs make(), which returns the backend under test")

    def clear(self) -> None:
        """Delete all data of the store, as a flush does."""
        raise NotImplementedError(f"{type(self).__name__} needs clear(), which empties the store under test")

    @pytest.fixture
    def backend(self) -> Iterator[LockStore]:
        """Yield a backend with an empty store."""
        self.clear()
        backend = self.make()
        yield backend
        backend.close_idle()
        backend.close()


def held(record: Record | None) -> Record:
    """Return ``record``. Fail if it is ``None``: the lock is free."""
    assert record is not None, "the lock is free"
    return record


def ttl_of(record: Record | None) -> int:
    """Return the milliseconds until the lease ends. Fail if the lock is free, or has no expiry."""
    ttl = held(record).ttl
    assert ttl is not None, "the lock has no expiry"
    return ttl


def lapse(backend: LockStore, *asks: AcquireRequest) -> list[int]:
    """Acquire these locks, let the lease of one after the other end, and return their fences.

    A majority does not grant a lease that ends before it has answered: each is granted for long, and shortened.
    """
    fences = []
    for ask in asks:
        fences.append(granted(backend.acquire(ask)).fence)
        assert backend.extend(ask.name, ask.token, 1, 1) is True
        eventually(lambda name=ask.name: backend.get(name) is None)  # type: ignore[misc]
    return fences
