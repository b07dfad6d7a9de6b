"""The slots of those who sleep in one process: whoever wakes takes the first one that is still good.

So a thread that wakes late costs nothing while another one of its process is in time for its slot, and
keeps its rank: it takes the next slot, and whoever comes behind it the next but one.
"""

from __future__ import annotations

import bisect
import threading
from typing import NamedTuple

from django_tasklock.backends.contract.rates import Booked
from django_tasklock.rates.server_clock import ServerClock
from django_tasklock.types import monotonic

AT_ONCE = 64


class Slot(NamedTuple):
    """A booked time at a limiter, and when it was asked for and heard of, by this process's clock."""

    booked: Booked
    sent: float
    heard: float

    @property
    def wait(self) -> float:
        """Seconds until its turn; 0 from then on."""
        return max(0.0, self.heard + self.booked.wait / 1_000_000 - monotonic())

    def late(self, clock: ServerClock) -> float:
        """Return the seconds since its turn by the store's clock, never too few. Negative: not yet."""
        booked, now = self.booked, monotonic()
        if (left := self.heard + booked.wait / 1_000_000 - now) > 0:
            return -left
        late = now - self.sent - booked.wait / 1_000_000
        return min(late, max(0.0, clock.latest(now) - booked.time / 1_000_000))

    def missed(self, clock: ServerClock, margin: int) -> bool:
        """Return whether it is too late to use the slot. ``margin``: microseconds."""
        return self.late(clock) * 1_000_000 > margin + self.booked.leeway


class Sleepers:
    """Slots of one limiter, for calls of one cost, while their callers sleep: as many as there are sleepers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slots: list[Slot] = []

    def put(self, slot: Slot) -> None:
        """Leave a slot here for the time that one sleeps."""
        with self._lock:
            bisect.insort(self._slots, slot)

    def take(self, clock: ServerClock, margin: int) -> Slot | None:
        """Take the first that is still good, if its turn has come; then one that was missed; then the next to come.

        ``margin``: microseconds for which a slot may be used.
        """
        with self._lock:
            for index, slot in enumerate(self._slots):
                if not slot.missed(clock, margin):
                    return self._slots.pop(index if slot.late(clock) >= 0 else 0)
            return self._slots.pop(0) if self._slots else None

    def take_missed(self, clock: ServerClock, margin: int, edition: int) -> list[Slot]:
        """Take those that nobody can use any more, of one edition: at most as many as are exchanged at once."""
        with self._lock:
            number = 0
            for slot in self._slots[:AT_ONCE]:
                if slot.booked.edition != edition or not slot.missed(clock, margin):
                    break
                number += 1
            found, self._slots = self._slots[:number], self._slots[number:]
            return found

    def reclaim(self, slot: Slot) -> Slot | None:
        """Take this one, or if somebody else has taken it, the last."""
        with self._lock:
            if slot in self._slots:
                self._slots.remove(slot)
                return slot
            return self._slots.pop() if self._slots else None

    def __len__(self) -> int:
        return len(self._slots)
