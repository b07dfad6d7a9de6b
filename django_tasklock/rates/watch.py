"""This process's view of its limiters: the last answer of the store, and the callers that sleep or ask here."""

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
MOST = 1024  # limiters that this process remembers
FRESH = 1.0  # seconds for which an answer to another caller of this process is used


class Sighting(NamedTuple):
    """The state of a limiter by an answer of the store. ``at``: when it was requested, on this process's clock."""

    at: float
    edition: int
    total_pause: int


class LimiterView:
    """This process's view of one limiter: its last sighting, and the locks by which callers ask one after another."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.last: Sighting | None = None
        self.booking = 0
        """The number of reservations that are being booked just now."""
        # Weak, so that each lives as long as its callers: there may be as many costs as calls.
        self._sleepers: weakref.WeakValueDictionary[Hashable, Sleepers] = weakref.WeakValueDictionary()
        self._sleepers_lock = threading.Lock()
        self._lock = threading.Lock()
        self._locks: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = weakref.WeakKeyDictionary()

    def sleepers(self, of: Hashable) -> Sleepers:
        """Return the sleepers that may take each other's slots. ``of``: where they have booked, and their cost."""
        with self._sleepers_lock:
            found = self._sleepers.get(of)
            if found is None:
                found = self._sleepers[of] = Sleepers()
            return found

    @property
    def lonely(self) -> bool:
        """Whether no other caller of this process waits here. Such a caller asks the store before it makes its call."""
        if self.booking:
            return False
        return not any(len(found) for of in self._sleepers.valuerefs() if (found := of()) is not None)

    def hear(self, sent: float, answer: Booked | Refused) -> None:
        """Record the state in an answer to a request of ``sent``, so that other sleepers need not ask."""
        if isinstance(answer, Refused):
            self.last = Sighting(sent, answer.edition, answer.total_pause)
            return
        self.last = Sighting(sent, answer.edition - answer.must_resume, answer.total_pause)
        if answer.rebuilt:
            text = "rate limit %r: the store's clock was set back; all bookings were dropped for a window"
            logger.error(text, self.name)

    def current(self, booked: Booked, sent: float) -> bool | None:
        """Tell whether the limiter is unchanged since ``booked`` was requested at ``sent``; ``None``: not known."""
        last = self.last
        if last is not None and last.at > sent:
            if (last.edition, last.total_pause) != (booked.edition, booked.total_pause):
                return False
            if monotonic() - last.at < FRESH:
                return True
        return None

    def confirms(self, booked: Booked, seconds: float) -> bool:
        """Tell whether an answer of the last ``seconds`` says that the limiter is unchanged."""
        last = self.last
        known = booked.edition - booked.must_resume, booked.total_pause
        return last is not None and monotonic() - last.at < seconds and (last.edition, last.total_pause) == known

    @contextlib.contextmanager
    def asking(self, seconds: float) -> Iterator[None]:
        """Let callers ask one after another, so that not all that wake need to ask. Wait ``seconds`` at most."""
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
    """Return this process's view of a limiter."""
    found = _views.get(name)
    if found is None:
        found = _views.setdefault(name, LimiterView(name))
        if len(_views) > MOST:
            _views.popitem(last=False)
    return found


def note_change(name: str) -> None:
    """Record that this process has paused or reset the limiter, so that its sleepers ask when they wake."""
    view_of(name).last = Sighting(monotonic(), -1, -1)


def forget() -> None:
    """Forget the views of all limiters."""
    _views.clear()


def after_fork() -> None:
    """Forget the parent's views: one of their locks may be held by a thread of the parent."""
    forget()
