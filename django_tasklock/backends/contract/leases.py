"""The contract that stores of locks and stores of permits share: acquire, renew and release a lease, wait for one.

The rules in the docstring of ``backends.contract.locks`` apply here too.
"""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

from django_tasklock.backends.contract import threads
from django_tasklock.types import AcquireRequest, Busy, Grant, Holder, Record, Released, Renewal, RenewalResult

T = TypeVar("T")
POLL_INTERVAL = 0.25  # seconds between two attempts of a waiter that no release can wake


class Waiting(NamedTuple):
    """A waiter in the queue of a lock or of a limiter. Times are the store's, in milliseconds since 1970."""

    holder: Holder
    """The holder it would become."""
    since: int
    now: int
    present: bool = True
    """False if it has not polled for as long as a handed-over lock stays reserved for its waiter: it is passed over."""


class Queued(NamedTuple):
    """The first waiters of a queue. ``total``: the number of all."""

    waiting: list[Waiting]
    total: int


class LeaseStore(ABC):
    """The operations of a holder, on locks or on permits."""

    noun = "lock"
    """The word for what is held, in log messages."""
    wakes: bool = False
    """True: a release grants the lock to the longest waiter and wakes it; waiters are served in order of arrival."""

    where: ClassVar[threads.Where] = "threads"
    """Where the verbs run for coroutines."""

    @abstractmethod
    def acquire(self, request: AcquireRequest) -> Grant | Busy:
        """Take the lock if it is free, or held by ``request.token`` or ``request.supersedes`` already. Never waits."""

    @abstractmethod
    def release(self, name: str, token: str) -> Released:
        """Release the lock if ``token`` holds it; another holder's lock is never touched."""

    def release_and_clear(
        self, name: str, token: str, names: tuple[str, ...]
    ) -> tuple[Released, frozenset[str] | None]:
        """Do what ``release`` does and clear the flags (``LockStore.set_flag``) of one or two names in one trip.

        Return the outcome of the release, and the names whose flag was set; ``None`` if that is unknown.
        """
        return self.release(name, token), None

    @abstractmethod
    def extend(self, name: str, token: str, ttl: int, hold: int) -> bool:
        """Extend the lock of ``token``: its key expires in ``ttl`` ms, its timeout ends in ``hold`` ms, both from now.

        False: ``token`` does not hold the lock.
        """

    @abstractmethod
    def renew(self, batch: Sequence[Renewal]) -> list[RenewalResult]:
        """Renew up to a hundred leases in one request; return the results in the same order.

        A lost lock is never created again. A key that another application has overwritten counts as lost, and does
        not make the other renewals fail.
        """

    @abstractmethod
    def get_held(self, name: str, token: str) -> Record | None:
        """Return the record of ``name`` for its holder. ``None``, or the record of another token: the lock is lost."""

    def waiter(self, request: AcquireRequest) -> Waiter:
        """Return a waiter for ``request.name``, to be used as a context manager."""
        return Waiter(self, request)

    def close_idle(self) -> None:
        """Close the connection that only the calling thread uses, if there is one and it is idle."""

    async def in_thread(self, verb: Callable[..., T], *args: Any, undo: Callable[[], object] | None = None) -> T:
        """Run ``verb`` where it may block, and return its answer.

        If the coroutine is cancelled after it has begun, it is still finished, and ``undo`` is run after a grant.
        """
        return await threads.run(self, self.where, partial(verb, *args), undo)

    async def aacquire(self, request: AcquireRequest) -> Grant | Busy:
        """Do what ``acquire`` does, for coroutines. If it is cancelled, a lock that it is granted is released."""
        return await self.in_thread(self.acquire, request, undo=partial(self.release, request.name, request.token))

    async def arelease(self, name: str, token: str) -> Released:
        """Do what ``release`` does, for coroutines."""
        return await self.in_thread(self.release, name, token)

    async def aextend(self, name: str, token: str, ttl: int, hold: int) -> bool:
        """Do what ``extend`` does, for coroutines."""
        return await self.in_thread(self.extend, name, token, ttl, hold)

    async def aget_held(self, name: str, token: str) -> Record | None:
        """Do what ``get_held`` does, for coroutines."""
        return await self.in_thread(self.get_held, name, token)


class Alarm:
    """Lets a thread or a coroutine sleep until another thread rings, also before it has gone to sleep."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._rouse: Callable[[], object] | None = None  # only while a coroutine is asleep

    def ring(self) -> None:
        """Wake who is asleep, and who goes to sleep before ``clear`` is called."""
        self._event.set()
        if (rouse := self._rouse) is not None:
            with suppress(RuntimeError):  # the event loop has ended
                rouse()

    def clear(self) -> None:
        """Forget that it has rung."""
        self._event.clear()

    def sleep(self, seconds: float) -> None:
        """Sleep for at most ``seconds``."""
        self._event.wait(max(0.0, seconds))

    async def asleep(self, seconds: float) -> None:
        """Do what ``sleep`` does, for coroutines."""
        import asyncio

        loop = asyncio.get_running_loop()
        woken = asyncio.Event()
        self._rouse = partial(loop.call_soon_threadsafe, woken.set)
        ends = loop.call_later(max(0.0, seconds), woken.set)
        try:
            if not self._event.is_set():
                await woken.wait()
        finally:
            self._rouse = None
            ends.cancel()


class Waiter:
    """Waits by polling a few times a second: for stores that cannot wake waiters.

    Waiters are served in no order. Subclasses may use a queue; leaving the ``with`` block leaves it.
    """

    def __init__(self, backend: LeaseStore, request: AcquireRequest) -> None:
        self.backend = backend
        self.request = request

    def acquire(self) -> Grant | Busy:
        """Try to take the lock, and join the queue for it if it is busy."""
        return self.backend.acquire(self.request)

    def wait(self, seconds: float) -> Grant | None:
        """Sleep for at most ``seconds``; return a ``Grant`` if the lock was handed over meanwhile."""
        time.sleep(self.pause(seconds))
        return None

    def leave(self) -> None:
        """Leave the queue; a lock that was handed over but not taken goes to the next waiter."""

    async def aacquire(self) -> Grant | Busy:
        """Do what ``acquire`` does, for coroutines."""
        return await self.backend.aacquire(self.request)

    async def await_(self, seconds: float) -> Grant | None:
        """Do what ``wait`` does, for coroutines."""
        import asyncio

        await asyncio.sleep(self.pause(seconds))
        return None

    async def aleave(self) -> None:
        """Do what ``leave`` does, for coroutines."""

    @staticmethod
    def pause(seconds: float) -> float:
        """Return the seconds to sleep until the next poll, with jitter so that waiters do not poll in step."""
        return max(0.0, min(seconds, POLL_INTERVAL * random.uniform(0.9, 1.1)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *how: object) -> None:
        self.leave()
