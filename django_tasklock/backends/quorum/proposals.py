"""The numbers that a process proposes as fences."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Proposals:
    """Microseconds since 1970, each greater than those before, and than what instances have said.

    A fence is a proposal that a majority of the instances has accepted and recorded, alike on all of them, in the
    script that grants. An instance accepts a proposal only if it is greater than every fence that it has recorded for
    the name (or a name that shares the record). Two majorities have an instance in common; that has recorded the
    earlier fence when it accepts the later one: so the later one is greater, whatever the clocks of the processes and
    the instances say. An instance that has lost its data gets a floor for its fences before it votes, from a majority
    of the others (``recovery``), one of which has them. So fences grow while no more than a minority loses its data. If
    all is lost, they grow as well as the clocks of the processes agree.

    Clocks decide one thing only: proposals of a process whose clock is behind are refused, and need a second trip. The
    refusal has the greatest fence, and later proposals of the process are greater.
    """

    def __init__(self, clock: Callable[[], int] = time.time_ns) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last = 0
        self._behind = 0

    def next(self) -> int:
        """Return a new one."""
        with self._lock:
            self._last = max(self._last + 1, self.now() + self._behind)
            return self._last

    def now(self) -> int:
        """Return this process's clock, in microseconds."""
        return self._clock() // 1000

    def learn(self, greatest: int, sent: int) -> None:
        """Note what an instance has recorded before ``sent`` (``now()``): the next ones are greater."""
        with self._lock:
            self._last = max(self._last, greatest)
            self._behind = max(self._behind, greatest + 1 - sent)
