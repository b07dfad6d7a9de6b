"""This process's view of its limiters: the last answer of the store, and the callers that sleep or ask here."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import weakref
from collections import OrderedDict
from collections.abc import AsyncIterator, Hashable, Iterator
from typing import NamedTuple

from django_tasklock.backends.contract.rates import Booked, Refused
from django_tasklock.rates.slots import SlotPool
from django_tasklock.types import monotonic

logger = logging.getLogger("django_tasklock")
MAX_LIMITERS = 1024  # limiters that this process remembers
LONGEST_BACKOFF = 60.0  # seconds
FRESH_FOR = 1.0  # seconds for which an answer to another caller of this process is used


class LimiterState(NamedTuple):
    """The state of a limiter by an answer of the store. ``at``: when it was requested, on this process's clock."""

    at: float
    edition: int
    total_pause: int


class LimiterView:
    """This process's view of one limiter: its last state, and the locks by which callers ask one after another."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.last_state: LimiterState | None = None
        self._backoff, self._backoff_ends = 1.0, -math.inf
        self.bookings_in_progress = 0
        """The number of reservations that are being booked just now."""
        # Weak, so that each lives as long as its callers: there may be as many costs as calls.
        self._slot_pools: weakref.WeakValueDictionary[Hashable, SlotPool] = weakref.WeakValueDictionary()
        self._slot_pools_lock = threading.Lock()
        self._lock = threading.Lock()
        self._async_locks: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            weakref.WeakKeyDictionary()
        )

    def slot_pool(self, key: Hashable) -> SlotPool:
        """Return the slots that sleeping callers may take from each other. ``key``: their limit, and the cost."""
        with self._slot_pools_lock:
            found = self._slot_pools.get(key)
            if found is None:
                found = self._slot_pools[key] = SlotPool()
            return found

    @property
    def has_no_callers(self) -> bool:
        """Whether no caller of this process waits here. One that comes now asks the store before it makes its call."""
        if self.bookings_in_progress:
            return False
        return not any(len(found) for pool in self._slot_pools.valuerefs() if (found := pool()) is not None)

    def next_backoff(self) -> float:
        """Return the seconds to pause after an answer that does not say how long: 1, doubled each time, up to a minute.

        Answers to calls that were under way at once count once, and a minute without any begins anew.
        """
        now = monotonic()
        if now >= self._backoff_ends + LONGEST_BACKOFF:
            self._backoff = 1.0
        elif now >= self._backoff_ends:
            self._backoff = min(2 * self._backoff, LONGEST_BACKOFF)
        self._backoff_ends = now + self._backoff
        return self._backoff

    def record_answer(self, sent: float, answer: Booked | Refused) -> None:
        """Record the state in an answer to a request of ``sent``, so that other sleepers need not ask."""
        if isinstance(answer, Refused):
            self.last_state = LimiterState(sent, answer.edition, answer.total_pause)
            return
        self.last_state = LimiterState(sent, answer.edition - answer.must_resume, answer.total_pause)
        if answer.rebuilt:
            text = "rate limit %r: the store's clock was set back; all bookings were dropped for a window"
            logger.error(text, self.name)

    def is_unchanged(self, booked: Booked, sent: float) -> bool | None:
        """Tell whether the limiter is unchanged since ``booked`` was requested at ``sent``; ``None``: not known."""
        last = self.last_state
        if last is not None and last.at > sent:
            if (last.edition, last.total_pause) != (booked.edition, booked.total_pause):
                return False
            if monotonic() - last.at < FRESH_FOR:
                return True
        return None

    def confirmed_within(self, booked: Booked, seconds: float) -> bool:
        """Tell whether an answer of the last ``seconds`` says that the limiter is unchanged."""
        last = self.last_state
        known = booked.edition - booked.must_resume, booked.total_pause
        return last is not None and monotonic() - last.at < seconds and (last.edition, last.total_pause) == known

    @contextlib.contextmanager
    def request_lock(self, seconds: float) -> Iterator[None]:
        """Let callers ask one after another, so that not all that wake need to ask. Wait ``seconds`` at most."""
        held = self._lock.acquire(timeout=seconds)
        try:
            yield
        finally:
            if held:
                self._lock.release()

    @contextlib.asynccontextmanager
    async def arequest_lock(self, seconds: float) -> AsyncIterator[None]:
        """Do what ``request_lock`` does, for coroutines."""
        lock = self._async_locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())
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
        if len(_views) > MAX_LIMITERS:
            _views.popitem(last=False)
    return found


def record_change(name: str) -> None:
    """Record that this process has paused or reset the limiter, so that its sleepers ask when they wake."""
    view_of(name).last_state = LimiterState(monotonic(), -1, -1)


def forget() -> None:
    """Forget the views of all limiters."""
    _views.clear()


def after_fork() -> None:
    """Forget the parent's views: one of their locks may be held by a thread of the parent."""
    forget()
