"""What this process knows of its limiters: of each the last that it has heard, and who sleeps or asks here."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import weakref
from collections import OrderedDict
from collections.abc import AsyncIterator, Hashable, Iterator
from typing import NamedTuple

from django_tasklock.backends.contract.rates import Booked, Refused
from django_tasklock.rates.sleepers import Sleepers
from django_tasklock.types import monotonic

logger = logging.getLogger("django_tasklock")
MOST = 1024  # limiters this process remembers having heard of
FRESH = 1.0  # seconds for which an answer to somebody else in this process will do


class Sighting(NamedTuple):
    """The state of a limiter, as an answer said that was asked for at ``at``, by this process's clock."""

    at: float
    edition: int
    pause: int


class LimiterView:
    """One limiter as this process knows it: the last sighting of it, and whose turn it is to ask for another."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.last: Sighting | None = None
        self.booking = 0
        """The number of reservations that are being booked just now."""
        # As long as somebody has a slot there: there may be as many costs as calls.
        self._sleepers: weakref.WeakValueDictionary[Hashable, Sleepers] = weakref.WeakValueDictionary()
        self._sleepers_lock = threading.Lock()
        self._lock = threading.Lock()
        self._locks: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = weakref.WeakKeyDictionary()

    def sleepers(self, of: Hashable) -> Sleepers:
        """Return those who may take each other's slot: ``of`` is where they booked, and their cost."""
        with self._sleepers_lock:
            found = self._sleepers.get(of)
            if found is None:
                found = self._sleepers[of] = Sleepers()
            return found

    @property
    def lonely(self) -> bool:
        """True if nobody else of this process waits here: whoever does will ask before going, for nobody else does."""
        if self.booking:
            return False
        return not any(len(found) for of in self._sleepers.valuerefs() if (found := of()) is not None)

    def hear(self, sent: float, answer: Booked | Refused) -> None:
        """Note what an answer to a question of ``sent`` says of the limiter: others who sleep here need not ask."""
        if isinstance(answer, Refused):
            self.last = Sighting(sent, answer.edition, answer.pause)
            return
        self.last = Sighting(sent, answer.edition - answer.asks, answer.pause)
        if answer.rebuilt:
            text = "rate limit %r: the store's clock was set back; all bookings were dropped for a window"
            logger.error(text, self.name)

    def current(self, booked: Booked, sent: float) -> bool | None:
        """Return whether the limiter stands as when ``booked`` was asked for at ``sent``; ``None``: not known."""
        last = self.last
        if last is not None and last.at > sent:
            if (last.edition, last.pause) != (booked.edition, booked.pause):
                return False
            if monotonic() - last.at < FRESH:
                return True
        return None

    def confirms(self, booked: Booked, seconds: float) -> bool:
        """Return whether somebody of this process has heard so lately that the limiter stands as it did."""
        last = self.last
        known = booked.edition - booked.asks, booked.pause
        return last is not None and monotonic() - last.at < seconds and (last.edition, last.pause) == known

    @contextlib.contextmanager
    def asking(self, seconds: float) -> Iterator[None]:
        """Ask one after the other, so that many who wake at once need not all ask; wait no longer than that."""
        held = self._lock.acquire(timeout=seconds)
        try:
            yield
        finally:
            if held:
                self._lock.release()

    @contextlib.asynccontextmanager
    async def aasking(self, seconds: float) -> AsyncIterator[None]:
        """Do what ``asking`` does, for coroutines."""
        lock = self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        held = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                held = await lock.acquire()
        try:
            yield
        finally:
            if held:
                lock.release()


_views: OrderedDict[str, LimiterView] = OrderedDict()


def view_of(name: str) -> LimiterView:
    """Return what this process knows of a limiter."""
    found = _views.get(name)
    if found is None:
        found = _views.setdefault(name, LimiterView(name))
        if len(_views) > MOST:
            _views.popitem(last=False)
    return found


def note_change(name: str) -> None:
    """Note that this process has stopped or reset the limiter: whoever sleeps here asks on waking."""
    view_of(name).last = Sighting(monotonic(), -1, -1)


def forget() -> None:
    """Forget what this process has heard of every limiter."""
    _views.clear()


def after_fork() -> None:
    """Forget the parent's views: a lock of one may be held by a thread that is not here."""
    forget()
