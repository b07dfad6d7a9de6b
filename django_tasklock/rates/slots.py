"""The slots of the callers that sleep in one process: a caller that wakes takes the first slot that is still usable.

So a thread that wakes late wastes no slot while another one of its process is in time for it. The late thread keeps its
rank: it takes the next slot, and the thread behind it the slot after that.
"""

from __future__ import annotations

import bisect
import threading
from typing import NamedTuple

from django_tasklock.backends.contract.rates import Booked
from django_tasklock.rates.server_clock import ServerClock
from django_tasklock.types import monotonic

MAX_EXCHANGED = 64


class Slot(NamedTuple):
    """A booked time at a limiter, with the times of request and answer on this process's clock."""

    booked: Booked
    sent: float
    received: float

    @property
    def wait(self) -> float:
        """The seconds until its time; 0 from then on."""
        return max(0.0, self.received + self.booked.wait / 1_000_000 - monotonic())

    def late(self, clock: ServerClock) -> float:
        """Return the seconds since its time on the store's clock, at most. Negative: it is still to come."""
        booked, now = self.booked, monotonic()
        if (left := self.received + booked.wait / 1_000_000 - now) > 0:
            return -left
        late = now - self.sent - booked.wait / 1_000_000
        return min(late, max(0.0, clock.upper_bound(now) - booked.time / 1_000_000))

    def was_missed(self, clock: ServerClock, margin: int) -> bool:
        """Tell whether it is too late to use the slot. ``margin``: microseconds."""
        return self.late(clock) * 1_000_000 > margin + self.booked.leeway


class SlotPool:
    """The slots of one limiter, for calls of one cost, one for each sleeping caller."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slots: list[Slot] = []

    def put(self, slot: Slot) -> None:
        """Add the slot of a caller that goes to sleep."""
        with self._lock:
            bisect.insort(self._slots, slot)

    def take(self, clock: ServerClock, margin: int) -> Slot | None:
        """Take the first usable slot if its time has come; otherwise a missed one; otherwise the next one.

        ``margin``: the microseconds for which a slot may be used after its time.
        """
        with self._lock:
            for index, slot in enumerate(self._slots):
                if not slot.was_missed(clock, margin):
                    return self._slots.pop(index if slot.late(clock) >= 0 else 0)
            return self._slots.pop(0) if self._slots else None

    def take_missed(self, clock: ServerClock, margin: int, edition: int) -> list[Slot]:
        """Take the missed slots of one edition, at most ``MAX_EXCHANGED``, which is what one exchange takes."""
        with self._lock:
            number = 0
            for slot in self._slots[:MAX_EXCHANGED]:
                if slot.booked.edition != edition or not slot.was_missed(clock, margin):
                    break
                number += 1
            found, self._slots = self._slots[:number], self._slots[number:]
            return found

    def take_own_or_last(self, slot: Slot) -> Slot | None:
        """Take this slot, or the last one if another caller has taken it."""
        with self._lock:
            if slot in self._slots:
                self._slots.remove(slot)
                return slot
            return self._slots.pop() if self._slots else None

    def __len__(self) -> int:
        return len(self._slots)
