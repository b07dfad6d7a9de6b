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
from typing import Any, NamedTuple, Protocol

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


class Block(NamedTuple):
    """A block of a lock or of a limiter that runs here, and the enclosing block of the same kind."""

    lock: weakref.ref[Any]
    lease: Lease
    around: Block | None


lock_block: ContextVar[Block | None] = ContextVar("tasklock_current", default=None)
"""The innermost block of a lock."""
limiter_block: ContextVar[Block | None] = ContextVar("tasklock_limiter", default=None)
"""The innermost block of a concurrency limiter."""


def skip_abandoned(block: Block | None) -> Block | None:
    """Return ``block`` or the first enclosing block that can still be left.

    A block whose lock object is gone is never left: an exception from a signal handler has interrupted its end.
    """
    while block is not None and block.lock() is None:
        block = block.around
    return block


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
    lock_block.set(None)
    limiter_block.set(None)


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
    for variable in (limiter_block, lock_block):
        block = variable.get()
        while block is not None:
            lease = block.lease
            if not lease.released and (lease.asked or lease.lost) and not lease.inherited:
                lock = block.lock()
                if lock is not None:
                    ensure_lease_held(lock, lease)
            block = block.around


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


def _enclosing_blocks() -> Iterator[Block]:
    for variable in (limiter_block, lock_block):
        block = variable.get()
        while block is not None:
            if not (block.lease.released or block.lease.inherited):
                yield block
            block = block.around


@contextmanager
def _listening(listener: Callable[[], None]) -> Iterator[list[Lease]]:
    """Return the enclosing leases; ``listener`` is called when one is lost, or its release is requested."""
    leases = [block.lease for block in _enclosing_blocks()]
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
