"""What every ``MemoryBackend`` of this process shares: locks, queues and a clock."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from django_tasklock.backends.codec import holder_of, json_object
from django_tasklock.backends.contract.metrics import (
    ACQUIRED,
    EXPIRED,
    GRANTED_LATE,
    PERMIT_EXPIRED,
    RELEASED,
    TRANSFERRED,
    WAITED,
    HoldRecord,
)
from django_tasklock.backends.contract.queries import Queued, Waiting
from django_tasklock.backends.ledger.state import State
from django_tasklock.backends.memory.metrics import MemoryCounts
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.types import AcquireRequest, Record, monotonic

CLAIM = 1000
"""Milliseconds a lock that was handed over is kept for a waiter that has not taken it yet."""


class QueuedWaiter(Protocol):
    """A waiter in the queue of a lock or a limiter."""

    request: AcquireRequest
    since: int
    """When it came, by the store's clock, in milliseconds since 1970."""

    @property
    def present(self) -> bool:
        """Whether somebody is there to take the lock."""

    def ring(self) -> None:
        """Wake whoever sleeps here."""


@dataclass(slots=True)
class StoredLease:
    """A lock and who has it. Milliseconds since 1970."""

    token: str
    holder: str
    at: int
    until: int
    expires: int
    fence: int
    kind: str | None = None
    asked: int = 0
    waits: tuple[str, int, int] | None = None
    """What its holder waits for itself, since when, and until when that is known."""


class Down:
    """In the place of the mutex while nobody can ask the store."""

    def __enter__(self) -> None:
        raise BackendUnavailable("the memory store is down: a test says so", doubt=False)

    def __exit__(self, *how: object) -> None:
        """Do nothing: nobody came in."""


class Store:
    """The one of this process. Whoever calls a method of it has the ``mutex``."""

    def __init__(self) -> None:
        self.up = threading.RLock()  # reentrant: the garbage collector may release a lock in here
        self.mutex: AbstractContextManager[object] = self.up
        self.held: dict[str, StoredLease] = {}
        self.queues: dict[str, deque[QueuedWaiter]] = {}
        self.permits: dict[str, dict[str, StoredLease]] = {}
        self.permit_queues: dict[str, deque[QueuedWaiter]] = {}
        self.rates: dict[str, State] = {}
        self.counts = MemoryCounts()
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
        """Return who has the lock. One that lapsed goes to the longest waiter."""
        held = self.held.get(name)
        return held if held is not None and held.expires > self.now() else self.pass_on(name)

    def owned(self, name: str, token: str) -> StoredLease | None:
        """Return the lock, if ``token`` has it."""
        held = self.current(name)
        return held if held is not None and held.token == token else None

    def grant(self, request: AcquireRequest, ttl: int, waited: int | None = None) -> StoredLease:
        """Give a lock away that is free, or whose holder is followed. ``waited``: milliseconds."""
        before = self.held.get(request.name)
        if before is not None and before.expires > self.now():
            self.counts.add(self.now(), TRANSFERRED, request.kind)
        else:
            if before is not None:
                self.ended(request.name, before, EXPIRED)
            self.counts.add(self.now(), ACQUIRED if waited is None else WAITED, request.kind, waited)
        self.held[request.name] = held = self.made(request, ttl)
        return held

    def ended(self, name: str, held: StoredLease, how: str) -> None:
        """Count how a hold ended."""
        now = self.now()
        self.counts.add(now, how, held.kind, now - held.at if how == RELEASED else None)
        if held.kind is not None:
            ended_at = held.expires if how == EXPIRED else now
            holder = holder_of(json_object(held.holder))
            self.counts.note(HoldRecord(name, held.kind, holder, held.at, ended_at, how))

    def made(self, request: AcquireRequest, ttl: int) -> StoredLease:
        """Return what is kept of a grant."""
        now = self.now()
        self.fence = max(self.fence + 1, now * 1000)
        return StoredLease(
            request.token, request.holder, now, now + request.hold_ms, now + ttl, self.fence, request.kind
        )

    def taken(self, name: str) -> dict[str, StoredLease]:
        """Return the permits of a limiter, by token, without those that lapsed."""
        found = self.permits.setdefault(name, {})
        for token in [token for token, held in found.items() if held.expires <= self.now()]:
            self.counts.add(self.now(), PERMIT_EXPIRED, found.pop(token).kind)
        return found

    def serve(self, name: str) -> dict[str, StoredLease]:
        """Hand free permits to the longest waiters that are still there; who has one now. Strictly in order."""
        taken, line = self.taken(name), self.permit_queues.get(name)
        while line and (not line[0].present or len(taken) < line[0].request.limit):
            waiter = line.popleft()
            if waiter.present:
                taken[waiter.request.token] = self.made(waiter.request, waiter.request.claim(CLAIM))
                self.counts.add(self.now(), GRANTED_LATE, waiter.request.kind, self.now() - waiter.since)
                waiter.ring()
        if not line:
            self.permit_queues.pop(name, None)
        if not taken:
            del self.permits[name]
        return taken

    def free(self, name: str, how: str) -> None:
        """Take a lock from whoever has it, or let it lapse; the longest waiter gets it. ``how`` it ended is counted."""
        self.ended(name, self.held.pop(name), how)
        self.pass_on(name)

    def pass_on(self, name: str) -> StoredLease | None:
        """Hand a free lock to the longest waiter that is still there: a short claim, until it takes it."""
        queue = self.queues.get(name)
        while queue:
            waiter = queue.popleft()
            if not queue:
                del self.queues[name]
            if waiter.present:
                held = self.grant(waiter.request, waiter.request.claim(CLAIM), self.now() - waiter.since)
                waiter.ring()
                return held
        return None

    def queued(self, name: str, queues: dict[str, deque[QueuedWaiter]], limit: int) -> Queued:
        """Return who is in a queue."""
        queue, now = queues.get(name, ()), self.now()
        found = [
            Waiting(holder_of(json_object(one.request.holder)), one.since, now, one.present)
            for one in islice(queue, limit)
        ]
        return Queued(found, len(queue))

    def ring(self) -> None:
        """Wake all who wait, to look again."""
        for queue in (*self.queues.values(), *self.permit_queues.values()):
            for waiter in queue:
                waiter.ring()

    def record(self, name: str, held: StoredLease, queues: dict[str, deque[QueuedWaiter]] | None = None) -> Record:
        """Return what the contract shows of a lock, or of a permit where ``queues`` are those of permits."""
        now = self.now()
        waiting = sum(waiter.present for waiter in (self.queues if queues is None else queues).get(name, ()))
        holder = holder_of(json_object(held.holder))
        left = held.expires - now
        return Record(name, held.token, holder, held.at, held.until, now, held.fence, left, waiting, held.asked)


store = Store()
"""The one of this process."""


def reset() -> None:
    """Forget every lock, permit, booking and waiter of this process, and the time that ``advance`` skipped."""
    store.mutex = store.up
    with store.mutex:
        store.held.clear()
        store.permits.clear()
        store.rates.clear()
        store.counts = MemoryCounts()
        store.skipped = 0.0
        store.ring()
        store.queues.clear()
        store.permit_queues.clear()


def advance(seconds: float) -> None:
    """Let ``seconds`` pass on the clock of this store: leases lapse, waiters notice."""
    with store.mutex:
        store.skipped += seconds
        store.ring()


def shut(down: bool) -> None:
    """Be down, or up again: nobody can ask a store that is down, and whoever waits in it hears of that at once."""
    with store.up:
        store.mutex = Down() if down else store.up
        store.ring()


def after_fork() -> None:
    """Begin empty, in place: a lock is its process's, and a mutex may be held by no thread of ours."""
    store.__init__()  # type: ignore[misc]
