"""The places of those who sleep in one process: whoever wakes takes the first one that is still good.

So a thread that wakes late costs nothing while another one of its process is in time for its place, and
keeps its rank: it takes the next place, and who comes behind it the next but one.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable
from typing import NamedTuple

from django_tasklock.backends.contract.rates import Booked

AT_ONCE = 64


class Place(NamedTuple):
    """A place, and when it was asked for and heard of, by this process's clock."""

    booked: Booked
    sent: float
    heard: float


class Line:
    """Places of one limiter, for calls of one cost, while their callers sleep: as many as there are sleepers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: list[Place] = []

    def put(self, place: Place) -> None:
        """Leave a place here for the time that one sleeps."""
        with self._lock:
            bisect.insort(self._places, place)

    def take(self, late: Callable[[Place], float], margin: float) -> Place | None:
        """The first that is still good, if its turn has come; then one that was missed; then the next to come.

        ``late``: seconds since its turn, of a place; it may be used for ``margin`` seconds.
        """
        with self._lock:
            for index, place in enumerate(self._places):
                since = late(place)
                if since <= margin + place.booked.leeway / 1_000_000:
                    return self._places.pop(index if since >= 0 else 0)
            return self._places.pop(0) if self._places else None

    def missed(self, late: Callable[[Place], float], margin: float, epoch: int) -> list[Place]:
        """Take those that nobody can use any more, of one epoch: at most as many as are exchanged at once."""
        with self._lock:
            number = 0
            for place in self._places[:AT_ONCE]:
                if place.booked.epoch != epoch or late(place) <= margin + place.booked.leeway / 1_000_000:
                    break
                number += 1
            found, self._places = self._places[:number], self._places[number:]
            return found

    def reclaim(self, place: Place) -> Place | None:
        """This one, or if somebody else has taken it, the last."""
        with self._lock:
            if place in self._places:
                self._places.remove(place)
                return place
            return self._places.pop() if self._places else None

    def __len__(self) -> int:
        return len(self._places)
