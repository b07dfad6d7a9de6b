"""What the code that runs here is inside of, which locks and permits, and whether they still stand.

Whoever waits inside of one, for another lock, a permit or a rate, must not begin a body afterwards whose lock is known
to be lost, or asked for: so it looks again right before the body, and its sleep ends when something is known.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

from django_tasklock.exceptions import BackendUnavailable, LockLost, ReleaseAsked
from django_tasklock.types import monotonic

logger = logging.getLogger("django_tasklock")

NOTED = 1.0
"""Seconds of a sleep that is noted of the locks around."""


class Waits(Protocol):
    """The store of a lock, as far as it notes what a holder waits for."""

    def note_wait(self, name: str, token: str, what: str, ms: int) -> None:
        """Note for ``ms`` milliseconds that the holder with ``token`` waits for ``what``."""

    async def anote_wait(self, name: str, token: str, what: str, ms: int) -> None:
        """Do the same, for coroutines."""


class Named(Protocol):
    """What was taken, as messages call it: a lock, a limiter."""

    name: str
    noun: str


class Lease(Protocol):
    """One acquisition, as far as it concerns whoever waits inside of it."""

    bells: list[Callable[[], None]]
    """Called when it is lost, or asked for."""
    asked: bool
    deadline: float
    released: bool
    without_lock: bool
    name: str
    token: str

    @property
    def backend(self) -> Waits:
        """The store that it is in."""

    @property
    def lost(self) -> str:
        """Why it is certainly gone; empty while it is not."""

    @property
    def foreign(self) -> bool:
        """Whether another process has it, the one that this one was forked from."""


class Block(NamedTuple):
    """A block that runs here, and the one around it of the same kind."""

    lock: weakref.ref[Any]
    lease: Lease
    around: Block | None


lock_block: ContextVar[Block | None] = ContextVar("tasklock_current", default=None)
"""The innermost of a lock."""
limiter_block: ContextVar[Block | None] = ContextVar("tasklock_limiter", default=None)
"""The innermost of a concurrency limiter."""


def skip_struck(block: Block | None) -> Block | None:
    """Return ``block``, or the first around it that may still be left: nobody leaves those whose locks are gone, since
    a time limit has struck in their end.
    """
    while block is not None and block.lock() is None:
        block = block.around
    return block


def forget() -> None:
    """Let what runs here be inside of nothing: for tests, which leave blocks that nobody left."""
    lock_block.set(None)
    limiter_block.set(None)


def ensure_lease_held(lock: Named, lease: Lease) -> None:
    """Raise ``LockLost`` or ``ReleaseAsked`` if that is known of ``lease``, which was taken through ``lock``."""
    if reason := lease.lost:
        raise LockLost(f"{lock.noun} {lock.name!r} is lost: {reason}", name=lock.name)
    if lease.asked:
        raise ReleaseAsked(f"{lock.noun} {lock.name!r}: its holder is asked to give it back", name=lock.name)


def ensure_enclosing_held() -> None:
    """Raise ``LockLost`` or ``ReleaseAsked`` if that is known of a lock or permit around, the innermost first.

    Asks no store.
    """
    for variable in (limiter_block, lock_block):
        block = variable.get()
        while block is not None:
            lease = block.lease
            if not lease.released and (lease.asked or lease.lost) and not lease.foreign:
                lock = block.lock()
                if lock is not None:
                    ensure_lease_held(lock, lease)
            block = block.around


def sleep(seconds: float, what: str = "") -> None:
    """Sleep as ``time.sleep`` does; end with ``LockLost`` or ``ReleaseAsked`` when that is known of a lock around.

    ``what`` it sleeps for is noted of the locks around if that takes ``NOTED`` seconds: operators ask.
    """
    ends = monotonic() + seconds
    if what and seconds >= NOTED:
        for lease in _locks_around():
            with _unless_unavailable(lease, what):
                lease.backend.note_wait(lease.name, lease.token, what, int(seconds * 1000) + 1)
    bell = threading.Event()
    with _told(bell.set) as leases:
        if not leases:
            time.sleep(seconds)
            return
        while (left := ends - monotonic()) > 0:
            ensure_enclosing_held()
            bell.wait(min(left, _certain(leases)))


async def asleep(seconds: float, what: str = "") -> None:
    """Do what ``sleep`` does, for coroutines."""
    ends = monotonic() + seconds
    if what and seconds >= NOTED:
        for lease in _locks_around():
            with _unless_unavailable(lease, what):
                await lease.backend.anote_wait(lease.name, lease.token, what, int(seconds * 1000) + 1)
    bell, loop = asyncio.Event(), asyncio.get_running_loop()
    with _told(lambda: _ring(loop, bell)) as leases:
        if not leases:
            await asyncio.sleep(seconds)
            return
        while (left := ends - monotonic()) > 0:
            ensure_enclosing_held()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(bell.wait(), min(left, _certain(leases)))


def _ring(loop: asyncio.AbstractEventLoop, bell: asyncio.Event) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody sleeps there any more
        loop.call_soon_threadsafe(bell.set)


def _around() -> Iterator[Block]:
    for variable in (limiter_block, lock_block):
        block = variable.get()
        while block is not None:
            if not (block.lease.released or block.lease.foreign):
                yield block
            block = block.around


def _locks_around() -> list[Lease]:
    """Return the leases of locks, not of permits, that the code here is inside of and that stand."""
    found, block = [], lock_block.get()
    while block is not None:
        lease = block.lease
        if not (lease.released or lease.foreign or lease.without_lock or lease.lost):
            found.append(lease)
        block = block.around
    return found


@contextmanager
def _unless_unavailable(lease: Lease, what: str) -> Iterator[None]:
    """Let the sleep go on if it could not be noted."""
    try:
        yield
    except BackendUnavailable as error:
        logger.warning("lock %r: that its holder waits for %s was not noted: %s", lease.name, what, error)


@contextmanager
def _told(ring: Callable[[], None]) -> Iterator[list[Lease]]:
    """Return the leases around; ``ring`` is called when one of them is lost or asked for."""
    leases = [block.lease for block in _around()]
    try:
        for lease in leases:
            lease.bells.append(ring)
        yield leases
    finally:
        for lease in leases:
            with contextlib.suppress(ValueError):
                lease.bells.remove(ring)


def _certain(leases: list[Lease]) -> float:
    """Return seconds until the first of them is over unless it is renewed. What nobody renews rings no bell."""
    return max(0.001, min((lease.deadline for lease in leases if not lease.without_lock), default=1e9) - monotonic())
