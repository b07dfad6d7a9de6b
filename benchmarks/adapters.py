"""How the benchmark uses a lock: one shape for all of them."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from typing import ClassVar

__all__ = ["HOLD", "Adapter", "AsyncAdapter", "CallerRetries", "Lock", "Refused"]

HOLD = 60
"""Seconds every lock here is asked to live."""


class Refused(Exception):
    """A lock nobody holds was refused, or a wait ran out: the measurement is void."""


class Adapter(ABC):
    """One lock on one key, in one process. Made after the fork, so that it connects for itself."""

    label: ClassVar[str]
    package: ClassVar[str] = ""
    """The distribution it comes from; empty: it is always there."""
    module: ClassVar[str] = ""
    waits: ClassVar[str] = ""
    """How a blocked acquire waits; empty: it cannot, and hand-off leaves it out."""
    only_pairs: ClassVar[bool] = False
    """A variant that is of interest in "pairs" only."""

    @abstractmethod
    def __init__(self, url: str, key: str) -> None: ...

    @abstractmethod
    def run(self, seconds: float) -> tuple[int, float]:
        """Acquire and release for ``seconds``; how often, and the seconds it took. ``Refused`` if one acquire fails."""

    @abstractmethod
    def repeat(self, pairs: int) -> None:
        """Acquire and release ``pairs`` times: to warm up, and to count round trips."""


class Lock(Adapter):
    """A lock with blocking calls."""

    @abstractmethod
    def try_acquire(self) -> bool:
        """One attempt, no waiting."""

    @abstractmethod
    def acquire(self) -> None:
        """Wait until the lock is held; ``Refused`` after ten seconds."""

    @abstractmethod
    def release(self) -> None:
        """Give it back."""

    def run(self, seconds: float) -> tuple[int, float]:
        clock = time.perf_counter
        pairs = 0
        start = now = clock()
        while now < start + seconds:
            self.pair()
            pairs += 1
            now = clock()
        return pairs, now - start

    def repeat(self, pairs: int) -> None:
        for _ in range(pairs):
            self.pair()

    def pair(self) -> None:
        """One acquire and release."""
        if not self.try_acquire():
            raise Refused(f"{self.label}: a free lock was refused")
        self.release()


class CallerRetries(Lock):
    """A lock that cannot wait. In "contended" its caller asks again every 1 ms, which flatters it."""

    def acquire(self) -> None:
        deadline = time.monotonic() + 10
        while not self.try_acquire():
            if time.monotonic() > deadline:
                raise Refused(self.label)
            time.sleep(0.001)


class AsyncAdapter(Adapter):
    """A lock with coroutines, in an event loop of its own."""

    only_pairs = True

    def __init__(self, url: str, key: str) -> None:
        self.runner = asyncio.Runner()

    @abstractmethod
    async def pair(self) -> None:
        """One acquire and release."""

    def run(self, seconds: float) -> tuple[int, float]:
        return self.runner.run(self._run(seconds))

    def repeat(self, pairs: int) -> None:
        self.runner.run(self._repeat(pairs))

    async def _run(self, seconds: float) -> tuple[int, float]:
        clock = time.perf_counter
        pairs = 0
        start = now = clock()
        while now < start + seconds:
            await self.pair()
            pairs += 1
            now = clock()
        return pairs, now - start

    async def _repeat(self, pairs: int) -> None:
        for _ in range(pairs):
            await self.pair()
