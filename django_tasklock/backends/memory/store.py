"""The store that every ``MemoryBackend`` of this process shares: locks, queues and a clock."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from django_tasklock.backends.codec import holder_of, json_object
from django_tasklock.backends.contract.leases import Queued, Waiting
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


class Store:
    """The store of this process. Callers of its methods hold the ``mutex``."""

    def __init__(self) -> None:
        self.up = threading.RLock()  # reentrant: the garbage collector may release a lock while it is held
        self.mutex: AbstractContextManager[object] = self.up
        self.held: dict[str, StoredLease] = {}
        self.queues: dict[str, deque[QueuedWaiter]] = {}
        self.permits: dict[str, dict[str, StoredLease]] = {}
        self.permit_queues: dict[str, deque[QueuedWaiter]] = {}
        self.rates: dict[str, State] = {}
        self.fence = 0
        self.skipped = 0.0
        self.started = time.time() - monotonic()

    def now(self) -> int:
        """Return milliseconds since 1970, by the monotonic clock."""
        return self.now_in_microseconds() // 1000

    def now_in_microseconds(self) -> int:
        """Return microseconds since 1970, by the monotonic clock."""
        return int((self.started + monotonic() + self.skipped) * 1_000_000)

    def current(self, name: str) -> StoredLease | None:
        """Return the lease of a lock, after handing an expired or free one to the longest waiter."""
        held = self.held.get(name)
        return held if held is not None and held.expires > self.now() else self.pass_on(name)

    def owned(self, name: str, token: str) -> StoredLease | None:
        """Return the lock, if ``token`` holds it."""
        held = self.current(name)
        return held if held is not None and held.token == token else None

    def grant(self, request: AcquireRequest, ttl: int) -> StoredLease:
        """Grant a lock that is free or whose holder is superseded."""
        self.held[request.name] = held = self.new_lease(request, ttl)
        return held

    def new_lease(self, request: AcquireRequest, ttl: int) -> StoredLease:
        """Return a lease for a request, with the next fence."""
        now = self.now()
        self.fence = max(self.fence + 1, now * 1000)
        return StoredLease(request.token, request.holder, now, now + request.hold_ms, now + ttl, self.fence)

    def live_permits(self, name: str) -> dict[str, StoredLease]:
        """Return the permits of a limiter by token, after removing expired ones."""
        found = self.permits.setdefault(name, {})
        for token in [token for token, held in found.items() if held.expires <= self.now()]:
            del found[token]
        return found

    def serve(self, name: str) -> dict[str, StoredLease]:
        """Hand free permits to the longest present waiters, strictly in order; return those now held, by token."""
        taken, queue = self.live_permits(name), self.permit_queues.get(name)
        while queue and (not queue[0].present or len(taken) < queue[0].request.limit):
            waiter = queue.popleft()
            if waiter.present:
                taken[waiter.request.token] = self.new_lease(waiter.request, waiter.request.handover_ttl(HANDOVER_TTL))
                waiter.wake()
        if not queue:
            self.permit_queues.pop(name, None)
        if not taken:
            del self.permits[name]
        return taken

    def free(self, name: str) -> None:
        """End the hold of a lock, and hand the lock to the longest waiter."""
        del self.held[name]
        self.pass_on(name)

    def pass_on(self, name: str) -> StoredLease | None:
        """Hand a free lock to the longest present waiter, which must take it within a short time (``HANDOVER_TTL``)."""
        queue = self.queues.get(name)
        while queue:
            waiter = queue.popleft()
            if not queue:
                del self.queues[name]
            if waiter.present:
                held = self.grant(waiter.request, waiter.request.handover_ttl(HANDOVER_TTL))
                waiter.wake()
                return held
        return None

    def queued(self, name: str, queues: dict[str, deque[QueuedWaiter]], limit: int) -> Queued:
        """Return the first waiters of a queue."""
        queue, now = queues.get(name, ()), self.now()
        found = [
            Waiting(holder_of(json_object(one.request.holder)), one.since, now, one.present)
            for one in islice(queue, limit)
        ]
        return Queued(found, len(queue))

    def wake_all(self) -> None:
        """Wake all waiters, so that they poll again."""
        for queue in (*self.queues.values(), *self.permit_queues.values()):
            for waiter in queue:
                waiter.wake()

    def record(self, name: str, held: StoredLease, queues: dict[str, deque[QueuedWaiter]] | None = None) -> Record:
        """Return a lock as the contract's record, or a permit if ``queues`` are those of permits."""
        now = self.now()
        waiting = sum(waiter.present for waiter in (self.queues if queues is None else queues).get(name, ()))
        holder = holder_of(json_object(held.holder))
        left = held.expires - now
        return Record(name, held.token, holder, held.at, held.until, now, held.fence, left, waiting, held.asked)


store = Store()
"""The store of this process."""


def reset() -> None:
    """Drop every lock, permit, booking and waiter of this process, and the time that ``advance`` has skipped."""
    store.mutex = store.up
    with store.mutex:
        store.held.clear()
        store.permits.clear()
        store.rates.clear()
        store.skipped = 0.0
        store.wake_all()
        store.queues.clear()
        store.permit_queues.clear()


def advance(seconds: float) -> None:
    """Move the clock of this store by ``seconds``: leases expire, and waiters wake to poll."""
    with store.mutex:
        store.skipped += seconds
        store.wake_all()


def shut(down: bool) -> None:
    """Make the store unavailable, or available again. Waiters wake and get the error at once."""
    with store.up:
        store.mutex = UnavailableMutex() if down else store.up
        store.wake_all()


def after_fork() -> None:
    """Empty the store, in place: its locks belong to the parent, and no thread here would ever release its mutex."""
    store.__init__()  # type: ignore[misc]
