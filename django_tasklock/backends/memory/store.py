"""The store that every ``MemoryBackend`` of this process shares: locks, queues and a clock."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from django_tasklock.backends.contract.codec import holder_of, json_object
from django_tasklock.backends.contract.stores import Queued, Waiting
from django_tasklock.backends.ledger.state import State
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.types import AcquireRequest, Record, monotonic

HANDOVER_TTL = 1000
"""Milliseconds for which a lock that was handed over stays reserved for the waiter, until it takes the lock."""


class QueuedWaiter(Protocol):
    """A waiter in the queue of a lock or a limiter."""

    request: AcquireRequest
    since: int
    """When it joined the queue, by the store's clock, in milliseconds since 1970."""

    @property
    def present(self) -> bool:
        """Whether the waiter is asleep or has polled recently, so that it can take the lock."""

    def wake(self) -> None:
        """Wake the waiter if it is asleep."""


@dataclass(slots=True)
class StoredLease:
    """A lock or a permit with its holder. Times are in milliseconds since 1970."""

    token: str
    holder: str
    at: int
    until: int
    expires: int
    fence: int
    asked: int = 0


class UnavailableMutex:
    """Takes the place of the mutex while the store is down: to enter it raises ``BackendUnavailable``."""

    def __enter__(self) -> None:
        raise BackendUnavailable("the memory store is down: a test says so", doubt=False)

    def __exit__(self, *how: object) -> None:
        """Do nothing: the block was not entered."""


class Table:
    """The leases of locks, or of permits, by name and token, and the waiters for each name.

    A lease that has expired stays until the next grant, for lists. Callers of the methods hold the store's ``mutex``.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.held: dict[str, dict[str, StoredLease]] = {}
        self.queues: dict[str, deque[QueuedWaiter]] = {}

    def live(self, name: str) -> dict[str, StoredLease]:
        """Return the leases that have not expired, by token."""
        now = self.clock.now()
        return {token: lease for token, lease in self.held.get(name, {}).items() if lease.expires > now}

    def grant(self, request: AcquireRequest, ttl: int) -> StoredLease:
        """Return a new lease, with the next fence."""
        now = self.clock.now()
        lease = StoredLease(
            request.token, request.holder, now, now + request.hold_ms, now + ttl, self.clock.next_fence(now)
        )
        self.held[request.name] = {**self.live(request.name), request.token: lease}
        return lease

    def serve(self, name: str) -> dict[str, StoredLease]:
        """Hand what is free to the longest present waiters, strictly in order; return the live leases, by token."""
        queue = self.queues.get(name)
        live = self.live(name)
        while queue and (not queue[0].present or len(live) < queue[0].request.limit):
            waiter = queue.popleft()
            if waiter.present:
                self.grant(waiter.request, waiter.request.handover_ttl(HANDOVER_TTL))
                waiter.wake()
                live = self.live(name)
        if not queue:
            self.queues.pop(name, None)
        return live

    def end(self, name: str, token: str) -> None:
        """End a lease, and hand what is free to waiters."""
        del self.held[name][token]
        if not self.held[name]:
            del self.held[name]
        self.serve(name)

    def queued(self, name: str, limit: int) -> Queued:
        """Return the first waiters of a queue."""
        queue, now = self.queues.get(name, ()), self.clock.now()
        found = [
            Waiting(holder_of(json_object(one.request.holder)), one.since, now, one.present)
            for one in islice(queue, limit)
        ]
        return Queued(found, len(queue))

    def record(self, name: str, lease: StoredLease) -> Record:
        """Return a lease as the contract's record."""
        now = self.clock.now()
        return Record(
            name=name,
            token=lease.token,
            holder=holder_of(json_object(lease.holder)),
            at=lease.at,
            until=lease.until,
            now=now,
            fence=lease.fence,
            ttl=lease.expires - now,
            waiting=sum(waiter.present for waiter in self.queues.get(name, ())),
            asked=lease.asked,
        )


class Clock:
    """Milliseconds since 1970, by the monotonic clock, and fences that go with them."""

    def __init__(self) -> None:
        self.skipped = 0.0
        self._fence = 0
        self._started = time.time() - monotonic()

    def now(self) -> int:
        """Return milliseconds since 1970."""
        return self.now_in_microseconds() // 1000

    def now_in_microseconds(self) -> int:
        """Return microseconds since 1970."""
        return int((self._started + monotonic() + self.skipped) * 1_000_000)

    def next_fence(self, now: int) -> int:
        """Return a fence greater than the last one."""
        self._fence = max(self._fence + 1, now * 1000)
        return self._fence


class Store:
    """The store of this process."""

    def __init__(self) -> None:
        self.up = threading.RLock()  # reentrant: the garbage collector may release a lock while it is held
        self.mutex: AbstractContextManager[object] = self.up
        self.clock = Clock()
        self.locks = Table(self.clock)
        self.permits = Table(self.clock)
        self.rates: dict[str, State] = {}
        self.tallies: dict[str, tuple[int, int]] = {}
        """The counters, and when each expires."""

    def wake_all(self) -> None:
        """Wake all waiters, so that they poll again."""
        for queue in (*self.locks.queues.values(), *self.permits.queues.values()):
            for waiter in queue:
                waiter.wake()


store = Store()
"""The store of this process."""


def reset() -> None:
    """Drop every lock, permit, booking and waiter of this process, and the time that ``advance`` has skipped."""
    store.mutex = store.up
    with store.mutex:
        store.rates.clear()
        store.tallies.clear()
        store.clock.skipped = 0.0
        store.wake_all()
        for table in (store.locks, store.permits):
            table.held.clear()
            table.queues.clear()


def advance(seconds: float) -> None:
    """Move the clock of this store by ``seconds``: leases expire, and waiters wake to poll."""
    with store.mutex:
        store.clock.skipped += seconds
        store.wake_all()


def shut(down: bool) -> None:
    """Make the store unavailable, or available again. Waiters wake and get the error at once."""
    with store.up:
        store.mutex = UnavailableMutex() if down else store.up
        store.wake_all()


def after_fork() -> None:
    """Empty the store, in place: its locks belong to the parent, and no thread here would ever release its mutex."""
    store.__init__()  # type: ignore[misc]
