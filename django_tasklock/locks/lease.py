"""A lease, which is one acquisition: how long it is certain, whether it is lost, and who wants it back.

After a fork the child has none: it neither renews nor releases what its parent holds.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from django_tasklock.types import Grant, monotonic

if TYPE_CHECKING:
    from django_tasklock.backends.contract.leases import LeaseStore
    from django_tasklock.context import Named

GONE = "the store no longer knows it: it expired, was released by force, or the store was flushed"
"""Why a lease is lost that the store does not know any more."""
LOOK = 1.0  # seconds in which the store is asked once whether a lease stands
ROUNDED = 1  # milliseconds by which a store may count a lease too short: its clock has no fractions of them

generation = 0
"""Of this process: what was taken in another one was taken by somebody else."""


class Lease:
    """A lock in somebody's hands. Times are seconds on the monotonic clock of this process.

    ``span``: how long its key lives without a renewal, in milliseconds; ``None``: nobody renews it. ``deadline``: until
    then the lease is certain, counted from before the request that was answered. ``until``: the end of the timeout.
    ``due``: the next renewal, which may be ``slack`` early to go along with others. ``asked``: somebody wants it back;
    ``looked``: when the store was last asked about that.
    """

    fence = 0
    count = 1
    """How often it is taken, by re-entry: it is released when it was given back as often."""
    deadline = until = due = slack = 0.0
    asked = False
    since = 0.0
    """When the grant was heard of; 0 where it was taken in another way than by asking."""
    kind: str | None = None
    """What it is counted as; ``None``: it is not counted."""
    looked = 0.0
    released = False
    """Whether it was given back, or given up: nobody has it any more, and its loss is no news."""
    successor: Lease | None = None
    """What was taken in place of this one, when that was lost."""
    without_lock = False
    """Whether its body runs without the lock: the store could not be asked, and the policy is ``run``."""
    home: Callable[[], dict[str, Lease] | None] | None = None
    """Where it is noted that somebody has it; that of a thread or asyncio task that has ended is ``None``."""
    _lost = ""

    def __init__(
        self,
        backend: LeaseStore,
        name: str,
        span: int | None,
        lock: weakref.ref[Named] | None = None,
        on_lost: Callable[[str], object] | None = None,
    ) -> None:
        self.backend = backend
        self.name = name
        self.token = os.urandom(16).hex()
        self.span = span
        self.lock = lock
        """What it was taken through. Weak: who drops that must not be kept waiting for the garbage collector."""
        self.on_lost = on_lost
        """Who listens to its loss."""
        self.entered: list[object] = []
        """Of each block entered with it that is not left yet: the block around that one, to be current again."""
        self.bells: list[Callable[[], None]] = []
        """Called when it is lost, or asked for: whoever sleeps inside of it wakes."""
        self.generation = generation

    def granted(self, grant: Grant, sent: float, hold: int) -> None:
        """Take over what the store said to a request sent at ``sent``."""
        self.fence = grant.fence
        self.until = sent + hold / 1000
        ttl = grant.ttl  # as below
        self.deadline = sent + (ttl - ROUNDED) / 1000
        self.due = sent + ttl / 3000
        self.slack = ttl / 10_000

    def renewed(self, sent: float, ttl: int) -> None:
        """Note that the key lives ``ttl`` milliseconds from ``sent``, at least."""
        self.deadline = sent + (ttl - ROUNDED) / 1000
        self.due = sent + ttl / 3000
        self.slack = ttl / 10_000

    @property
    def lost(self) -> str:
        """Why the lease is certainly gone; empty while it is not."""
        if not self._lost and not self.without_lock and monotonic() >= self.deadline:
            return "its timeout is over" if self.last else "it could not be renewed in time"
        return self._lost

    def lose(self, reason: str) -> bool:
        """Note the loss; True for the first to do so."""
        if self._lost or self.released:
            return False
        self._lost = reason
        self._ring()
        return True

    def request_release(self) -> bool:
        """Note that its holder is asked to release it; True for the first call."""
        if self.asked or self.released:
            return False
        self.asked = True
        self._ring()
        return True

    def _ring(self) -> None:
        for ring in list(self.bells):
            ring()

    def due_to_look(self) -> bool:
        """Tell whether to ask the store now, which hears of a loss, and of who asks for it, at once."""
        now = monotonic()
        if self.without_lock or self.lost or self.asked or now < self.looked + LOOK:
            return False
        self.looked = now
        return True

    @property
    def last(self) -> bool:
        """Whether the lease goes to the end of the timeout: there is no more to renew."""
        return self.deadline >= self.until - 2 * ROUNDED / 1000

    @property
    def foreign(self) -> bool:
        """True in a process forked from the one that has the lock."""
        return self.generation != generation


def forget() -> None:
    """Make foreign what this process holds, as if another process had taken it."""
    global generation
    generation += 1


def after_fork() -> None:
    """Make foreign what the parent holds."""
    forget()
