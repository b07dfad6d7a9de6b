"""One acquisition, and which of them belong to the thread or asyncio task that asks.

After a fork the child has none: it neither renews nor releases what its parent holds.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from django_tasklock.types import Grant, monotonic

if TYPE_CHECKING:
    from django_tasklock.backends.leases import Leases

__all__ = ["Hold", "Holds", "holds_here"]

ROUNDED = 1  # milliseconds by which a store may count a lease too short: its clock has no fractions of them


class Hold:
    """A lock in somebody's hands. Times are seconds on the monotonic clock of this process.

    ``deadline``: until then the lease is certain, counted from before the request that
    was answered. ``until``: the end of the timeout. ``due``: the next renewal, which may
    be ``slack`` early to go along with others. ``asked``: somebody wants it back; ``looked``: when the store was
    last asked about that.
    """

    __slots__ = (
        "__weakref__", "_lost", "asked", "backend", "count", "deadline", "due", "entered", "fence", "generation",
        "home", "lease", "looked", "name", "on_asked", "on_lost", "released", "slack", "token", "unlocked", "until",
    )  # fmt: skip

    def __init__(self, backend: Leases, name: str, lease: int | None, on_lost: Callable[[str], None] | None) -> None:
        self.backend = backend
        self.name = name
        self.token = os.urandom(16).hex()
        self.lease = lease
        self.on_lost = on_lost
        self.fence = 0
        self.count = 1
        self.entered: list[object] = []
        self.deadline = self.until = self.due = self.slack = 0.0
        self.asked = False
        self.looked = 0.0
        self.on_asked: Callable[[], None] | None = None
        self.released = False
        self.unlocked = False
        self._lost = ""
        self.generation = _generation
        self.home: weakref.ref[Holds] | None = None

    def granted(self, grant: Grant, asked: float, hold: int) -> None:
        """Take over what the store said to a request sent at ``asked``."""
        self.fence = grant.fence
        self.until = asked + hold / 1000
        self.renewed(asked, grant.ttl)

    def renewed(self, asked: float, ttl: int) -> None:
        """The key lives ``ttl`` milliseconds from ``asked``, at least."""
        self.deadline = asked + (ttl - ROUNDED) / 1000
        self.due = asked + ttl / 3000
        self.slack = ttl / 10_000

    @property
    def lost(self) -> str:
        """Why the lease is certainly gone; empty while it is not."""
        if not self._lost and not self.unlocked and monotonic() >= self.deadline:
            return "its timeout is over" if self.last else "it could not be renewed in time"
        return self._lost

    def lose(self, reason: str) -> bool:
        """Note the loss; True for the first to do so."""
        if self._lost or self.released:
            return False
        self._lost = reason
        return True

    def ask(self) -> bool:
        """Note that somebody wants it back; True for the first to do so."""
        if self.asked or self.released:
            return False
        self.asked = True
        return True

    @property
    def last(self) -> bool:
        """Whether the lease goes to the end of the timeout: there is no more to renew."""
        return self.deadline >= self.until - 2 * ROUNDED / 1000

    @property
    def foreign(self) -> bool:
        """True in a process forked from the one that has the lock."""
        return self.generation != _generation

    def settle(self, home: Holds) -> None:
        """Belong to the thread or asyncio task whose ``home`` this is."""
        home[self.name] = self
        self.home = weakref.ref(home)

    def leave(self) -> None:
        """Belong to nobody any more, whoever says so: another thread may release what one has taken."""
        home = None if self.home is None else self.home()
        if home is not None and home.get(self.name) is self:
            del home[self.name]


class Holds(dict[str, Hold]):
    """By name, what one thread or asyncio task holds."""

    __slots__ = ("__weakref__", "_permits")

    @property
    def permits(self) -> Holds:
        """Its permits, which are no locks even where they have the same name."""
        found: Holds | None = getattr(self, "_permits", None)
        if found is None:
            found = self._permits = Holds()
        return found


_generation = 0
_threads = threading.local()
_tasks: weakref.WeakKeyDictionary[asyncio.Task[object], Holds] = weakref.WeakKeyDictionary()


def holds_here() -> Holds:
    """What the running asyncio task holds, or this thread where there is none."""
    if asyncio._get_running_loop() is not None:
        task = asyncio.current_task()
        if task is not None:
            return _tasks.setdefault(task, Holds())
    try:
        return _threads.holds  # type: ignore[no-any-return]
    except AttributeError:
        _threads.holds = Holds()
        return _threads.holds  # type: ignore[no-any-return]


def _after_fork() -> None:
    global _generation, _threads, _tasks
    _generation += 1
    _threads = threading.local()
    _tasks = weakref.WeakKeyDictionary()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
