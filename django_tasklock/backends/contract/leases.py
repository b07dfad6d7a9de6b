"""What a lock and a permit have in common to whoever holds one: a token, a lease, and a way to wait for it.

The rules of ``backends.contract.locks`` hold here too.
"""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, Self, TypeVar

from asgiref.sync import sync_to_async

from django_tasklock.types import AcquireRequest, Busy, Grant, Record, Released, Renewal, RenewalResult

T = TypeVar("T")
POLL = 0.25  # seconds between two looks of a waiter that no release can wake


class Held(Protocol):
    """A lock in somebody's hands, and what that one knows of it."""

    name: str
    token: str
    kind: str | None
    """What it is counted as; ``None``: it is not counted."""
    fence: int
    since: float
    """When its holder learned of the grant (``types.monotonic``); 0: that is not known."""


class LeaseStore(ABC):
    """The verbs of a holder, over locks or over permits."""

    noun = "lock"
    """What is held, for people."""
    wakes: bool = False
    """True: a release wakes the longest waiter and hands it the lock, in order of arrival."""

    @abstractmethod
    def acquire(self, request: AcquireRequest) -> Grant | Busy:
        """Take the lock if it is free, or already held by ``request.token`` or ``request.supersedes``. Never waits."""

    @abstractmethod
    def release(self, name: str, token: str) -> Released:
        """Give the lock back if ``token`` holds it; never touches another holder's lock."""

    def release_held(self, held: Held) -> Released:
        """Do what ``release`` does, for who knows more than the token: a store that counts can spare itself that."""
        return self.release(held.name, held.token)

    def release_noted(self, held: Held, notes: tuple[str, ...]) -> tuple[Released, frozenset[str] | None]:
        """Do what ``release_held`` does, take away the notes (``LockStore.flag``) about one or two names in one trip.

        Return what that does, and the names about which there was one; ``None`` if that is not known.
        """
        return self.release_held(held), None

    @abstractmethod
    def extend(self, name: str, token: str, ttl: int, hold: int) -> bool:
        """Let ``token`` keep the lock: key for ``ttl``, holder for ``hold`` ms from now. False: not its lock."""

    @abstractmethod
    def renew(self, batch: Sequence[Renewal]) -> list[RenewalResult]:
        """Renew some leases at once, a hundred at the most, in the order given. Never re-creates a lock that is lost.

        A lock that is something else's now is lost, and costs the others nothing.
        """

    @abstractmethod
    def mine(self, name: str, token: str) -> Record | None:
        """Return what the store has of ``name`` for who holds it with ``token``. ``None``, or another's: it is lost."""

    def waiter(self, request: AcquireRequest) -> Waiter:
        """Return a place to wait for ``request.name``; use it as a context manager."""
        return Waiter(self, request)

    def close_idle(self) -> None:
        """Let go of a connection that is only its own."""

    def note_wait(self, name: str, token: str, what: str, ms: int) -> None:
        """Note, for so long, what ``token``, who has ``name``, waits for without a place in any queue: a rate."""

    async def in_thread(self, verb: Callable[..., T], *args: Any, undo: Callable[[], object] | None = None) -> T:
        """Return what ``verb`` answers in a thread, where it may wait for the store: what it does for coroutines.

        If the coroutine is cancelled the thread goes on, and does ``undo`` to what it is granted.
        """
        if undo is None:
            return await sync_to_async(verb)(*args)
        cancelled = threading.Event()

        def ask() -> T:
            answer = verb(*args)
            if cancelled.is_set() and isinstance(answer, Grant):
                undo()
            return answer

        try:
            return await sync_to_async(ask)()
        except BaseException:
            cancelled.set()
            raise

    async def anote_wait(self, name: str, token: str, what: str, ms: int) -> None:
        """Do what ``note_wait`` does, for coroutines."""
        await self.in_thread(self.note_wait, name, token, what, ms)

    async def aacquire(self, request: AcquireRequest) -> Grant | Busy:
        """Do what ``acquire`` does, for coroutines. One that is cancelled gives back what it is granted."""
        return await self.in_thread(self.acquire, request, undo=partial(self.release, request.name, request.token))

    async def arelease(self, name: str, token: str) -> Released:
        """Do what ``release`` does, for coroutines."""
        return await self.in_thread(self.release, name, token)

    async def arelease_held(self, held: Held) -> Released:
        """Do what ``release_held`` does, for coroutines."""
        return await self.arelease(held.name, held.token)

    async def aextend(self, name: str, token: str, ttl: int, hold: int) -> bool:
        """Do what ``extend`` does, for coroutines."""
        return await self.in_thread(self.extend, name, token, ttl, hold)

    async def amine(self, name: str, token: str) -> Record | None:
        """Do what ``mine`` does, for coroutines."""
        return await self.in_thread(self.mine, name, token)


class Waiter:
    """Waits by asking again a few times a second: for stores that cannot wake anybody.

    Not in order of arrival. Leaving the ``with`` block gives up the place.
    """

    def __init__(self, backend: LeaseStore, request: AcquireRequest) -> None:
        self.backend = backend
        self.request = request._replace(on_busy="")
        self._at_last = request.on_busy
        self._since: float | None = None

    def acquire(self) -> Grant | Busy:
        """Try to take the lock, and join the queue for it if it is busy."""
        return self.backend.acquire(self._asking())

    def _asking(self) -> AcquireRequest:
        """Return the request, with how long it was asked before."""
        if self._since is None:
            self._since = time.monotonic()
            return self.request
        return self.request._replace(waited=round((time.monotonic() - self._since) * 1000))

    def wait(self, seconds: float) -> Grant | None:
        """Sleep for at most ``seconds``; a ``Grant`` if the lock was handed over meanwhile."""
        time.sleep(self.pause(seconds))
        return None

    def look_last(self) -> None:
        """Let the next ``acquire()`` be the last: if it finds the lock busy, that is counted."""
        self.request = self.request._replace(on_busy=self._at_last)

    def leave(self) -> None:
        """Give up the place; a lock that was handed over but not taken goes to the next."""

    async def aacquire(self) -> Grant | Busy:
        """Do what ``acquire`` does, for coroutines."""
        return await self.backend.aacquire(self._asking())

    async def await_(self, seconds: float) -> Grant | None:
        """Do what ``wait`` does, for coroutines."""
        import asyncio

        await asyncio.sleep(self.pause(seconds))
        return None

    async def aleave(self) -> None:
        """Do what ``leave`` does, for coroutines."""

    @staticmethod
    def pause(seconds: float) -> float:
        """Return a jittered nap, so that many waiters do not ask in step."""
        return max(0.0, min(seconds, POLL * random.uniform(0.9, 1.1)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *how: object) -> None:
        self.leave()
