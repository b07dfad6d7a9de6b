"""The contract of a store of locks, and of one of permits. A store is responsible for atomicity and nothing else.

It handles names, tokens and milliseconds; tasks, guards and policies are handled by the
layers above. Names are passed without the key prefix. Every operation

* is one round trip where the store can do it in one,
* compares times with the store's clock, never with the caller's,
* raises ``BackendUnavailable`` when the store could not be asked, and nothing else,
* is safe to repeat with the same token, because a reply can be lost.
"""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeVar

from django_tasklock.backends.contract import threads
from django_tasklock.backends.contract.lists import Counts, Which
from django_tasklock.backends.contract.rates import RateStore
from django_tasklock.exceptions import TaskLockError
from django_tasklock.types import (
    AcquireRequest,
    Busy,
    Condition,
    Ending,
    Grant,
    Holder,
    InstanceState,
    Record,
    Released,
    Renewal,
    RenewalResult,
)

if TYPE_CHECKING:
    from django_tasklock.backends.contract.several import Several

T = TypeVar("T")
DAY = 86_400_000  # milliseconds
POLL_INTERVAL = 0.25  # seconds between two attempts of a waiter that no release can wake
_number_lock = threading.Lock()
_last_number = 0


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

    @property
    def database(self) -> str | None:
        """The alias of Django's database that the verbs query; ``None``: they have connections of their own."""
        return None

    @abstractmethod
    def acquire(self, request: AcquireRequest) -> Grant | Busy:
        """Take the lock if it is free, or held by ``request.token`` or ``request.supersedes`` already. Never waits."""

    @abstractmethod
    def release(self, name: str, token: str) -> Released:
        """Release the lock if ``token`` holds it; another holder's lock is never touched."""

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

    def waiters(self, name: str, limit: int = 100) -> Queued:
        """Return the waiters in the store's queue for ``name``, the longest first; none where waiters poll."""
        return Queued([], 0)

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


class Permits(LeaseStore):
    """The permits of a store: up to ``AcquireRequest.limit`` tokens hold one of a name at once.

    A holder of a permit is a *member*, with a token and a lease of its own: from a set of tokens the members that
    crashed can be removed, from a counter they cannot. The limit is the caller's and is not stored: a caller is granted
    a permit if fewer than *its* limit are taken.

    ``Busy.record`` is the member whose lease ends first; ``None`` if no permit is taken and the free ones are reserved
    for earlier waiters. A release never returns ``Released.NOT_YOURS``: each token has a permit of its own.
    """

    noun = "limiter"

    @abstractmethod
    def members(self, name: str) -> list[Record]:
        """Return the current members, the oldest first."""

    def members_of(self, names: Sequence[str]) -> list[list[Record]]:
        """Return the current members of several limiters. A store that can reads them in one step."""
        return [self.members(name) for name in names]

    @abstractmethod
    def remove(self, name: str, token: str) -> Record | None:
        """Take the permit away from ``token``; return the removed record."""

    @abstractmethod
    def names(self, limit: int = 1000) -> list[str]:
        """Return the names of up to ``limit`` limiters that have members, in no order."""

    def get_held(self, name: str, token: str) -> Record | None:
        return next((record for record in self.members(name) if record.token == token), None)

    async def amembers(self, name: str) -> list[Record]:
        """Do what ``members`` does, for coroutines."""
        return await self.in_thread(self.members, name)


class LockStore(LeaseStore):
    """A store of locks. One object per process, shared by its threads, created anew after a fork."""

    across_processes: bool = True
    """False: only this process sees the locks."""
    keeps_order: bool = False
    """True: members that drew a number for a name with ``next_number()`` are in its order until ``leave_order()``."""

    @cached_property
    def permits(self) -> Permits:
        """The store's permits, for concurrency limiters. ``TaskLockError`` where it has none."""
        raise TaskLockError(
            f"{type(self).__name__} has no permits: a concurrency limiter needs Redis or the database:"
            " point TASKLOCK['LOCATION'] at Redis, or set TASKLOCK['BACKEND'] to the database backend"
        )

    @cached_property
    def rates(self) -> RateStore:
        """The store's rate limits. ``TaskLockError`` where it has none."""
        raise TaskLockError(
            f"{type(self).__name__} keeps no rate limits: point TASKLOCK['LOCATION'] at Redis,"
            " or set TASKLOCK['BACKEND'] to the database backend"
        )

    @abstractmethod
    def get(self, name: str) -> Record | None:
        """Return the record of the lock ``name``; ``None`` if it is free."""

    def get_held(self, name: str, token: str) -> Record | None:
        return self.get(name)

    def release_and_mark(self, name: str, token: str, mark: str, ttl: int, *, clear: bool) -> Ending:
        """Do what ``release`` does, and count ``mark`` as ``tally`` does, whatever the outcome is; empty: nothing.

        ``clear``: also clear the flag of ``name`` (``set_flag``) if ``token`` had the lock. Where that takes several
        trips, the lock is released last.
        """
        if mark:
            self.tally(mark, ttl=ttl)
        return Ending(self.release(name, token), None, bool(mark))

    @abstractmethod
    def records(self, which: Which = "live", *, offset: int = 0, limit: int = 1000) -> list[Record]:
        """Return locks of a state in order of expiry, by a range read of an index.

        Fewer than ``limit``: there are no more. ``TaskLockError`` where the store cannot list.
        """

    def get_orphaned(self, name: str) -> Record | None:
        """Return the orphaned lock ``name``; ``None``: there is none, or the store cannot list."""
        return None

    @abstractmethod
    def counts(self) -> Counts:
        """Return how many locks of each state the index has. ``TaskLockError`` where the store cannot list."""

    @cached_property
    def several(self) -> Several:
        """The same locks, for leases that cover several of them."""
        from django_tasklock.backends.contract.several import Several

        return Several(self)

    def condition(self) -> Condition:
        """Return the store's latency, clock offset and eviction policy, in one round trip. Raises
        ``BackendUnavailable``.
        """
        began, before = time.time(), time.monotonic()
        clock, policy = self._condition()
        latency = time.monotonic() - before
        return Condition(latency, None if clock is None else clock / 1000 - began - latency / 2, policy)

    def _condition(self) -> tuple[int | None, str | None]:
        """Return the store's clock in ms and its eviction policy: see ``Condition``."""
        self.get("health")
        return None, None

    def instance_states(self) -> Sequence[InstanceState]:
        """Return the state of each of several independent instances, in the order of ``LOCATION``; empty for a single
        store.
        """
        return ()

    @abstractmethod
    def ask_release(self, name: str, token: str) -> bool:
        """Record that ``token`` is asked to release the lock: its next renewal returns that. False: not its lock."""

    def set_expiry(self, name: str, token: str, ttl: int) -> bool:
        """Give a lock without expiry a TTL of ``ttl`` ms, if ``token`` holds it; ``""`` stands for a foreign value."""
        return False  # a store whose locks always expire

    def prune(self, limit: int) -> int:
        """Drop up to ``limit`` orphaned locks from the index; return how many. A lock that exists is never dropped."""
        return 0

    def scan(self) -> int:
        """Put locks that other code has set into the index, by a walk through all keys; return how many were new.

        ``TaskLockError`` where other code cannot set them, or the store has no index.
        """
        raise TaskLockError(f"{type(self).__name__} cannot be scanned for locks of other code: only Redis can")

    @abstractmethod
    def remove(self, name: str, token: str | None = None) -> Record | None:
        """Take the lock away from its holder, if a token is given only from that one; return the removed record.

        ``""`` stands for a foreign value, one that was not written by this package.
        """

    def next_number(self, name: str = "", member: str = "") -> int:
        """Return a sequence number: a time in microseconds, greater than that of any earlier call.

        ``member`` joins the order of ``name`` with it, where the store keeps one. Between machines
        this default is only as exact as their clocks; a store with a clock of its own uses that.
        """
        global _last_number
        with _number_lock:
            _last_number = max(_last_number + 1, time.time_ns() // 1000)
            return _last_number

    def count_before(self, name: str, number: int, *, forget: bool = False) -> int:
        """Return how many members of the order of ``name`` have a lower sequence number; ``forget``: remove them.

        0 where the store keeps no order.
        """
        return 0

    def leave_order(self, name: str, member: str) -> bool:
        """Remove ``member`` from the order of ``name``; return whether others are in it.

        True where the store keeps no order: a caller that then checks in vain does no harm.
        """
        return True

    def record_newest(self, name: str, number: int) -> bool:
        """Record a sequence number; return whether none greater was recorded for ``name``. True where it is unknown."""
        return True

    def set_flag(self, name: str) -> bool:
        """Set the flag of ``name``: a message is parked for it, and the next holder to release the lock should check.

        Return whether the lock is certainly held, so that its holder will see the flag.
        """
        return False

    def clear_flag(self, name: str) -> bool:
        """Clear the flag of ``name``; return whether it was set.

        True where the store has no flags: a caller that then checks in vain does no harm.
        """
        return True

    @abstractmethod
    def tally(self, name: str, number: int = 1, *, ttl: int = DAY) -> int:
        """Add ``number``, 0 or not, to the counter of ``name``, and return it. It lives for ``ttl`` ms, at least, after
        its last change.

        A flag and a counter of one name are one thing. If the reply is lost and the request sent again, it may be added
        twice.
        """

    def close(self) -> None:
        """Close the connections. One that another thread is using is closed when that thread has finished with it. The
        store can be used again afterwards, for example to release what was acquired before; no connection stays open.
        """

    async def aget(self, name: str) -> Record | None:
        """Do what ``get`` does, for coroutines."""
        return await self.in_thread(self.get, name)
