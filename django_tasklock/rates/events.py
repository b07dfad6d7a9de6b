"""Nothing is swallowed: what happened at a rate limit becomes a log line and a signal, in one place."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import weakref
from collections import OrderedDict
from collections.abc import AsyncIterator, Hashable, Iterator
from typing import NamedTuple

from django_tasklock import signals
from django_tasklock.backends.contract.rates import Booked, Penalty, Refused, Terms
from django_tasklock.exceptions import BackendUnavailable, RateLimitExceeded
from django_tasklock.rates.lines import Line
from django_tasklock.types import monotonic

logger = logging.getLogger("django_tasklock")
MOST = 1024  # limiters this process remembers having heard of


class View(NamedTuple):
    """What this process last heard of a limiter: asked at ``at``, by its own clock."""

    at: float
    epoch: int
    pause: int


class Watch:
    """A limiter, as this process knows it: the last view of it, and whose turn it is to ask for another."""

    def __init__(self) -> None:
        self.view: View | None = None
        self.lock = threading.Lock()
        self.lines: dict[Hashable, Line] = {}
        """Of those who sleep here, by where they were booked and their cost."""
        self.booking = 0
        """How many are being booked just now."""
        self.locks: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = weakref.WeakKeyDictionary()

    def line(self, of: Hashable) -> Line:
        """That of those who may take each other's place."""
        found = self.lines.get(of)
        return self.lines.setdefault(of, Line()) if found is None else found

    @property
    def lonely(self) -> bool:
        """Whether nobody else of this process waits here: who does will ask before going, for nobody else does."""
        return not self.booking and (not self.lines or not any(map(len, self.lines.values())))

    @contextlib.contextmanager
    def asking(self, seconds: float) -> Iterator[None]:
        """One after the other, so that many who wake at once need not all ask; nobody waits for longer than that."""
        held = self.lock.acquire(timeout=seconds)
        try:
            yield
        finally:
            if held:
                self.lock.release()

    @contextlib.asynccontextmanager
    async def aasking(self, seconds: float) -> AsyncIterator[None]:
        """The same for coroutines."""
        lock = self.locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        held = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                held = await lock.acquire()
        try:
            yield
        finally:
            if held:
                lock.release()


_watches: OrderedDict[str, Watch] = OrderedDict()


def seen(name: str, sent: float, answer: Booked | Refused) -> None:
    """Note what an answer to a question of ``sent`` said of the limiter: others who sleep here need not ask."""
    watch = watch_of(name)
    if isinstance(answer, Refused):
        watch.view = View(sent, answer.epoch, answer.pause)
        return
    watch.view = View(sent, answer.epoch - answer.asks, answer.pause)
    if answer.rebuilt:
        logger.error("rate limit %r: the store's clock was set back; all bookings were dropped for a window", name)


def changed(name: str) -> None:
    """Note that this process has stopped or reset the limiter: who sleeps here asks on waking."""
    watch_of(name).view = View(monotonic(), -1, -1)


def watch_of(name: str) -> Watch:
    """What this process knows of a limiter."""
    watch = _watches.get(name)
    if watch is None:
        watch = _watches.setdefault(name, Watch())
        if len(_watches) > MOST:
            _watches.popitem(last=False)
    return watch


def granted(name: str, wait: float, cost: int) -> None:
    """A call may go."""
    how = "waited" if wait else "at_once"
    if wait:
        logger.debug("rate limit %r: granted after %.3f s", name, wait)
    signals.send(signals.rate_granted, name, how=how, wait=wait, cost=cost)


def refused(terms: Terms, wait: int, longest: int) -> RateLimitExceeded:
    """A call may not go in time; the error to raise."""
    seconds = wait / 1_000_000
    rates = ", ".join(map(str, terms.rates))
    why = f"the next place is in {seconds:.3f} s, it may take {longest / 1_000_000:g} s"
    error = RateLimitExceeded(f"rate limit {terms.name!r} ({rates}): {why}", name=terms.name, retry_after=seconds)
    logger.log(logging.INFO if longest else logging.DEBUG, "refused: %s", error)  # who did not want to wait only asked
    signals.send(signals.rate_refused, terms.name, error=error, retry_after=seconds)
    return error


def cancelled(name: str, returned: bool) -> None:
    """A place was given back; ``returned``: the store took it."""
    if not returned:
        logger.info("rate limit %r: a place was not given back: it counts as used", name)
    signals.send(signals.rate_cancelled, name, returned=returned)


def late(name: str, seconds: float) -> None:
    """Somebody missed his place by so much and books again."""
    logger.info("rate limit %r: a place was missed by %.3f s, and is booked again", name, seconds)
    signals.send(signals.rate_late, name, late=seconds)


def pushback(name: str, penalty: Penalty) -> None:
    """The other side asked for a pause."""
    wait, share = penalty.wait / 1_000_000, penalty.share / 1_000_000
    logger.warning("rate limit %r: pushback, nobody goes for %.3f s; limit at %.0f %%", name, wait, share * 100)
    signals.send(signals.rate_pushback, name, wait=wait, share=share)


def unavailable(name: str, error: BackendUnavailable, action: str) -> None:
    """The store could not be asked, and what is done about that."""
    logger.warning("rate limit %r: %s; policy: %s", name, error, action)
    signals.send(signals.store_unavailable, name, error=error, action=action)
    signals.send(signals.rate_unavailable, name, error=error, action=action)


def forget() -> None:
    """Forget what this process has heard of every limiter."""
    _watches.clear()


def after_fork() -> None:
    """Forget the parent's watches: a lock of one may be held by a thread that is not here."""
    forget()
