"""The locks and permits whose blocks enclose the running code, and whether they are still held.

Code that waits inside of such a block, for another lock, a permit or a rate, must not begin a body whose lock is known
to be lost, or whose release is requested: it checks that right before the body, and its sleep ends as soon as it is
known.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from django_tasklock.exceptions import LockLost, ReleaseAsked, TaskLockError
from django_tasklock.types import monotonic


class Named(Protocol):
    """A lock or a limiter, as messages name it."""

    name: str
    noun: str


class Lease(Protocol):
    """One acquisition, as code that waits inside of its block sees it."""

    listeners: list[Callable[[], None]]
    """Callbacks for its loss and for a request to release it."""
    asked: bool
    deadline: float
    released: bool
    without_lock: bool

    @property
    def lost(self) -> str:
        """The reason why it is certainly gone; empty while it may be valid."""

    @property
    def inherited(self) -> bool:
        """Whether it belongs to the process that this one was forked from."""


class Block:
    """A block of a lock or of a limiter that runs here.

    It refers weakly to its lease: an interruption may keep a block from being left, and then nobody has the lease.
    """

    __slots__ = ("around", "generator", "lease", "left", "lock")

    def __init__(self, lock: Any, lease: Lease, generator: int = 0) -> None:
        self.lock: weakref.ref[Any] = weakref.ref(lock)
        self.lease: weakref.ref[Lease] = weakref.ref(lease)
        self.generator = generator
        """The id of the frame of the generator that has entered it; 0: it was no generator."""
        self.left = False
        self.around = next(blocks(), None)
        """The enclosing block."""
        _innermost.set(self)

    def leave(self) -> None:
        """Leave it. It may have been entered in another context, whose innermost block it then is no more."""
        self.left = True
        _innermost.set(next(blocks(), None))


_innermost: ContextVar[Block | None] = ContextVar("tasklock_block", default=None)


def blocks(noun: str = "") -> Iterator[Block]:
    """Return the blocks that run here, the innermost first. ``noun``: those of locks, or of limiters, only."""
    block = _innermost.get()
    while block is not None:
        lock = block.lock()
        if not block.left and lock is not None and block.lease() is not None and noun in ("", lock.noun):
            yield block
        block = block.around


def current(noun: str, advice: str) -> Any:
    """Return the lock or the limiter, the ``noun``, of the innermost block here. Raises ``TaskLockError``."""
    if (block := next(blocks(noun), None)) is None or (lock := block.lock()) is None:
        raise none_current(noun, advice)
    return lock


def none_current(noun: str, advice: str) -> TaskLockError:
    """Return the error of code that asks for the current lock, claim or limiter where there is none."""
    text = f"no {noun} is current here: {advice}"
    if threading.current_thread() is not threading.main_thread():
        text += (
            f". Contexts do not follow into threads: pass the {noun} to the thread's function, or run that with"
            " contextvars.copy_context().run"
        )
    return TaskLockError(text)


def forget() -> None:
    """Leave all blocks of this context. For tests, in which blocks may have been left open."""
    _innermost.set(None)


def ensure_lease_held(lock: Named, lease: Lease) -> None:
    """Raise ``LockLost`` or ``ReleaseAsked`` if either is known of ``lease``, which was acquired through ``lock``."""
    if reason := lease.lost:
        raise LockLost(f"{lock.noun} {lock.name!r} is lost: {reason}", name=lock.name)
    if lease.asked:
        raise ReleaseAsked(f"{lock.noun} {lock.name!r}: its holder is asked to give it back", name=lock.name)


def ensure_enclosing_held() -> None:
    """Raise ``LockLost`` or ``ReleaseAsked`` if either is known of an enclosing lock or permit, the innermost first.

    It sends no request.
    """
    for block in blocks():
        lock, lease = block.lock(), block.lease()
        if lock is not None and lease is not None and not (lease.released or lease.inherited):
            ensure_lease_held(lock, lease)


def sleep(seconds: float) -> None:
    """Sleep like ``time.sleep``, but raise ``LockLost`` or ``ReleaseAsked`` once that is known of an enclosing lock."""
    ends = monotonic() + seconds
    woken = threading.Event()
    with _listening(woken.set) as leases:
        if not leases:
            time.sleep(seconds)
            return
        while (left := ends - monotonic()) > 0:
            ensure_enclosing_held()
            woken.wait(min(left, _seconds_certain(leases)))


async def asleep(seconds: float) -> None:
    """Do what ``sleep`` does, for coroutines."""
    ends = monotonic() + seconds
    woken, loop = asyncio.Event(), asyncio.get_running_loop()
    with _listening(lambda: _set_in_loop(loop, woken)) as leases:
        if not leases:
            await asyncio.sleep(seconds)
            return
        while (left := ends - monotonic()) > 0:
            ensure_enclosing_held()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(woken.wait(), min(left, _seconds_certain(leases)))


def _set_in_loop(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed, so no coroutine sleeps there any more
        loop.call_soon_threadsafe(event.set)


@contextmanager
def _listening(listener: Callable[[], None]) -> Iterator[list[Lease]]:
    """Return the enclosing leases; ``listener`` is called when one is lost, or its release is requested."""
    enclosing = [lease for block in blocks() if (lease := block.lease()) is not None]
    leases = [lease for lease in enclosing if not (lease.released or lease.inherited)]
    try:
        for lease in leases:
            lease.listeners.append(listener)
        yield leases
    finally:
        for lease in leases:
            with contextlib.suppress(ValueError):
                lease.listeners.remove(listener)


def _seconds_certain(leases: list[Lease]) -> float:
    """Return the seconds until the first deadline: the end of a lease that is not renewed calls no listener."""
    return max(0.001, min((lease.deadline for lease in leases if not lease.without_lock), default=1e9) - monotonic())
