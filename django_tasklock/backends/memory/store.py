"""What every ``MemoryBackend`` of this process shares: locks, queues and a clock."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from django_tasklock.backends.values import holder_of, json_object
from django_tasklock.types import Ask, Record, Refusal, monotonic

__all__ = ["CLAIM", "Held", "Place", "advance", "reset", "store"]

CLAIM = 1000
"""Milliseconds a lock that was handed over is kept for a waiter that has not taken it yet."""

REFUSALS = 5
"""How many of those that found a lock busy are remembered."""


class Place(Protocol):
    """Somebody in a queue."""

    ask: Ask

    @property
    def present(self) -> bool:
        """Whether somebody is there to take the lock."""

    def ring(self) -> None:
        """Wake whoever sleeps here."""


@dataclass(slots=True)
class Held:
    """A lock and who has it. Milliseconds since 1970."""

    token: str
    holder: str
    at: int
    until: int
    expires: int
    fence: int
    asked: int = 0


class Store:
    """The one of this process. Whoever calls a method of it has the ``mutex``."""

    def __init__(self) -> None:
        self.mutex = threading.RLock()  # reentrant: the garbage collector may release a lock in here
        self.held: dict[str, Held] = {}
        self.queues: dict[str, deque[Place]] = {}
        self.refusals: dict[str, deque[Refusal]] = {}
        self.fence = 0
        self.skipped = 0.0
        self.started = time.time() - monotonic()

    def now(self) -> int:
        """Milliseconds since 1970, by the monotonic clock."""
        return int((self.started + monotonic() + self.skipped) * 1000)

    def current(self, name: str) -> Held | None:
        """Who has the lock. One that lapsed goes to the longest waiter."""
        held = self.held.get(name)
        return held if held is not None and held.expires > self.now() else self.pass_on(name)

    def owned(self, name: str, token: str) -> Held | None:
        """The lock, if ``token`` has it."""
        held = self.current(name)
        return held if held is not None and held.token == token else None

    def grant(self, ask: Ask, ttl: int) -> Held:
        """Give a free lock away."""
        now = self.now()
        self.fence = max(self.fence + 1, now * 1000)
        self.held[ask.name] = held = Held(ask.token, ask.holder, now, now + ask.hold, now + ttl, self.fence)
        return held

    def free(self, name: str) -> None:
        """Take a lock from whoever has it, or let it lapse; the longest waiter gets it."""
        del self.held[name]
        self.pass_on(name)

    def pass_on(self, name: str) -> Held | None:
        """Hand a free lock to the longest waiter that is still there: a short claim, until it takes it."""
        queue = self.queues.get(name)
        while queue:
            waiter = queue.popleft()
            if not queue:
                del self.queues[name]
            if waiter.present:
                held = self.grant(waiter.ask, min(waiter.ask.ttl, CLAIM))
                waiter.ring()
                return held
        return None

    def ring(self) -> None:
        """Wake all who wait, to look again."""
        for queue in self.queues.values():
            for place in queue:
                place.ring()

    def record(self, name: str, held: Held) -> Record:
        """What the contract shows of a lock."""
        now = self.now()
        waiting = sum(waiter.present for waiter in self.queues.get(name, ()))
        holder = holder_of(json_object(held.holder))
        left = held.expires - now
        return Record(name, held.token, holder, held.at, held.until, now, held.fence, left, waiting, held.asked)

    def refuse(self, ask: Ask) -> None:
        """Note that ``ask`` found the lock busy."""
        last = self.refusals.setdefault(ask.name, deque(maxlen=REFUSALS))
        last.appendleft(Refusal(holder_of(json_object(ask.holder)), self.now()))


store = Store()
"""The one of this process."""


def reset() -> None:
    """Forget every lock and waiter of this process, and the time that ``advance`` skipped."""
    with store.mutex:
        store.held.clear()
        store.refusals.clear()
        store.skipped = 0.0
        store.ring()
        store.queues.clear()


def advance(seconds: float) -> None:
    """Let ``seconds`` pass on the clock of this store: leases lapse, waiters notice."""
    with store.mutex:
        store.skipped += seconds
        store.ring()


def _after_fork() -> None:
    store.__init__()  # type: ignore[misc]  # in place: a lock is its process's, and a mutex may be held by no thread of ours


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
