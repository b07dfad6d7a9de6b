"""What a store must promise. A backend owns atomicity and nothing else.

It knows names, tokens and milliseconds; it does not know what a task, a guard or a
policy is. Names come in without the key prefix. Every verb

* is one round trip where the store can do it in one,
* judges time by the store's clock, never by the caller's,
* raises ``BackendUnavailable`` when the store could not be asked, and nothing else,
* is safe to repeat with the same token, because a reply can be lost.
"""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from asgiref.sync import sync_to_async

from django_tasklock.types import (
    Ask,
    Busy,
    Counts,
    Grant,
    Kept,
    Page,
    Pruned,
    Query,
    Record,
    Refusal,
    Released,
    Renewal,
)

__all__ = ["Backend", "Waiter"]

POLL = 0.25  # seconds between two looks of a waiter that no release can wake


_tickets = threading.Lock()
_last_ticket = 0


class Backend(ABC):
    """A store of locks. One object per process, shared by its threads, made anew after a fork."""

    across_processes: bool = True
    """False: only this process sees the locks."""
    lines: bool = False
    """True: who drew a ticket for a name with ``ticket()`` is known until it has ``arrived()``."""
    wakes: bool = False
    """True: a release wakes the longest waiter and hands it the lock, in order of arrival."""

    @abstractmethod
    def acquire(self, ask: Ask) -> Grant | Busy:
        """Take the lock if it is free, or already held by ``ask.token`` or ``ask.instead``. Never waits."""

    @abstractmethod
    def release(self, name: str, token: str) -> Released:
        """Give the lock back if ``token`` holds it; never touches another holder's lock."""

    @abstractmethod
    def extend(self, name: str, token: str, ttl: int, hold: int) -> bool:
        """Let ``token`` keep the lock: key for ``ttl``, holder for ``hold`` ms from now. False: not its lock."""

    @abstractmethod
    def renew(self, batch: Sequence[Renewal]) -> list[Kept]:
        """Renew many leases at once, in the order given. Never re-creates a lock that is lost."""

    @abstractmethod
    def get(self, name: str) -> Record | None:
        """Who holds ``name`` now; ``None`` if nobody does."""

    @abstractmethod
    def records(self, *, expired: bool = False, limit: int = 1000, offset: int = 0) -> list[Record]:
        """Held locks in order of expiry, from an index. ``expired``: those whose holder let them lapse."""

    @abstractmethod
    def page(self, query: Query) -> Page:
        """Some locks, by range reads of an index. ``TaskLockError`` where the store cannot list."""

    @abstractmethod
    def counts(self) -> Counts:
        """How many locks there are of each kind, by the index. ``TaskLockError`` where the store cannot list."""

    @abstractmethod
    def ask_release(self, name: str, token: str) -> bool:
        """Note that ``token`` is asked to give the lock back: its next renewal says so. False: not its lock."""

    def bound(self, name: str, token: str, ttl: int) -> bool:
        """Give a lock without expiry ``ttl`` ms, if it is ``token``'s; with ``""`` if its value is nobody's of ours."""
        return False  # where no lock can be without

    def prune(self, limit: int, *, lapsed_before: int | None = None, prefix: str = "", offset: int = 0) -> Pruned:
        """Forget up to ``limit`` locks that lapsed, before that time (ms) and with that beginning of their names.

        From the one that lapsed first on, ``offset`` of them left out. One that exists is never forgotten.
        """
        return Pruned(0, 0)

    def refused(self, name: str) -> list[Refusal]:
        """The last that found ``name`` busy, the latest first; none where the store does not note them."""
        return []

    @abstractmethod
    def remove(self, name: str, token: str | None = None) -> Record | None:
        """Take the lock away from its holder, only if that is ``token`` where one is given; what was removed.

        ``""`` is the token of a value that somebody has put there by other means.
        """

    def ticket(self, name: str = "", member: str = "") -> int:
        """A time in microseconds that grows from call to call: the order of what asked for one.

        ``member`` joins the line for ``name`` with it, where lines are kept. Between machines
        this ticket is as exact as their clocks; a store that has a clock does better.
        """
        global _last_ticket
        with _tickets:
            _last_ticket = max(_last_ticket + 1, time.time_ns() // 1000)
            return _last_ticket

    def expects(self, name: str, ticket: int, *, forget: bool = False) -> int:
        """How many in the line for ``name`` have a lower ticket; ``forget``: they leave it. 0 where none is kept."""
        return 0

    def arrived(self, name: str, member: str) -> bool:
        """Leave the line for ``name``; whether others are in it. True where none is kept: looking never harms."""
        return True

    def newest(self, name: str, ticket: int) -> bool:
        """Whether no greater ticket has been shown for ``name``. True where that is not known."""
        return True

    def flag(self, name: str) -> None:
        """Note that something waits for ``name`` elsewhere: who releases it is to look there."""

    def flagged(self, name: str) -> bool:
        """Whether there was such a note, which is gone then. True where none are kept: looking never harms."""
        return True

    def waiter(self, ask: Ask) -> Waiter:
        """A place to wait for ``ask.name``; use it as a context manager."""
        return Waiter(self, ask)

    def rest(self) -> None:
        """This thread will not ask again soon: let go of a connection that is only its own."""

    def close(self) -> None:
        """Let go of connections. The backend can be used again afterwards."""

    async def aacquire(self, ask: Ask) -> Grant | Busy:
        """``acquire`` for coroutines. If it is cancelled, its thread goes on, and gives back what it is granted."""
        cancelled = threading.Event()

        def acquire() -> Grant | Busy:
            answer = self.acquire(ask)
            if cancelled.is_set() and isinstance(answer, Grant):
                self.release(ask.name, ask.token)
            return answer

        try:
            return await sync_to_async(acquire)()
        except BaseException:
            cancelled.set()
            raise

    async def arelease(self, name: str, token: str) -> Released:
        """``release`` for coroutines."""
        return await sync_to_async(self.release)(name, token)

    async def aextend(self, name: str, token: str, ttl: int, hold: int) -> bool:
        """``extend`` for coroutines."""
        return await sync_to_async(self.extend)(name, token, ttl, hold)

    async def aget(self, name: str) -> Record | None:
        """``get`` for coroutines."""
        return await sync_to_async(self.get)(name)


class Waiter:
    """Waits by asking again a few times a second: for stores that cannot wake anybody.

    Not in order of arrival. Leaving the ``with`` block gives up the place.
    """

    def __init__(self, backend: Backend, ask: Ask) -> None:
        self.backend = backend
        self.ask = ask

    def acquire(self) -> Grant | Busy:
        """Try to take the lock, and join the queue for it if it is busy."""
        return self.backend.acquire(self.ask)

    def wait(self, seconds: float) -> Grant | None:
        """Sleep for at most ``seconds``; a ``Grant`` if the lock was handed over meanwhile."""
        time.sleep(self.pause(seconds))
        return None

    def leave(self) -> None:
        """Give up the place; a lock that was handed over but not taken goes to the next."""

    async def aacquire(self) -> Grant | Busy:
        """``acquire`` for coroutines."""
        return await self.backend.aacquire(self.ask)

    async def await_(self, seconds: float) -> Grant | None:
        """``wait`` for coroutines."""
        import asyncio

        await asyncio.sleep(self.pause(seconds))
        return None

    async def aleave(self) -> None:
        """``leave`` for coroutines."""

    @staticmethod
    def pause(seconds: float) -> float:
        """A jittered nap, so that many waiters do not ask in step."""
        return max(0.0, min(seconds, POLL * random.uniform(0.9, 1.1)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()
