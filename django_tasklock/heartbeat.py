"""One thread per process that renews every lease of it, in batches, a third of a lease apart.

It starts with the first lock that has a lease, ends a little after the last, and knows
three outcomes of a renewal: renewed, lost (the store said so), unknown (no answer).
Unknown is tried again until the local deadline, where it turns into lost. It also
runs the ``errands`` of the process.

The weakness of a thread: code that keeps the interpreter to itself for longer than the
lease starves it. The lock is lost then, and is seen to be lost: deadlines are compared
whenever somebody asks, not only when this thread runs.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial

from django_tasklock.backends.leases import Leases
from django_tasklock.connections import release_connections
from django_tasklock.errands import AGAIN, Errands
from django_tasklock.holds import Hold
from django_tasklock.types import Ask, Kept, Renewal, monotonic

__all__ = ["Heartbeat", "heartbeat"]

logger = logging.getLogger("django_tasklock")

LINGER = 5.0  # seconds the thread stays when there is nothing left to renew
GONE = "the store no longer knows it: it expired, was released by force, or the store was flushed"


class Heartbeat:
    """The renewals of one process. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._held: dict[str, weakref.ref[Hold]] = {}
        self.errands = Errands()
        # Both in C, and the lock re-entrant: an exception out of a signal handler (a soft time limit) can
        # leave neither half taken, as it can a Condition, and a collected lock may call abandon() anywhere.
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._starting = threading.RLock()
        self._planned = math.inf  # when the thread wakes by itself; infinite while it does not sleep
        self._thread: threading.Thread | None = None

    def follow(self, hold: Hold) -> None:
        """Renew ``hold`` until it is released, lost, or at its timeout."""
        self._held[hold.token] = weakref.ref(hold)
        if self._thread is None or hold.due < self._planned:
            self._rouse()

    def forget(self, hold: Hold) -> None:
        """Stop; a renewal that is under way cannot bring a released lock back."""
        hold.released = True
        self._held.pop(hold.token, None)
        self.errands.late.pop(hold.token, None)

    def abandon(self, hold: Hold, longest: int) -> None:
        """Release ``hold`` as soon as the store answers; after ``longest`` ms it has ended by itself."""
        self.forget(hold)
        self.errands.give_back(hold, longest)
        self._rouse()

    def catch_up(self, hold: Hold, ask: Ask) -> None:
        """Take the lock that ``hold`` is without as soon as the store answers, and renew it from then on."""
        self.errands.catch_up(hold, ask)
        self._rouse()

    @property
    def alive(self) -> bool:
        """Whether the thread runs: it need not while nothing has a lease."""
        return self._thread is not None

    @property
    def late(self) -> float:
        """Seconds by which the renewal is late that is most overdue; 0 if all are in good time."""
        now = monotonic()
        overdue = [now - hold.due for hold in self._holds() if now - hold.due > (hold.lease or 0) / 3000]
        return max(overdue, default=0.0)

    def __len__(self) -> int:
        return len(self._held)

    def _rouse(self) -> None:
        self._wake.put(None)
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tasklock-heartbeat", daemon=True)
                try:
                    self._thread.start()
                except BaseException:
                    self._thread = None  # if it was started all the same, it sees that it is not wanted
                    raise

    def _run(self) -> None:
        me = threading.current_thread()
        ends = monotonic() + LINGER
        while self._thread is me:
            self._planned = math.inf
            with contextlib.suppress(queue.Empty):
                while True:
                    self._wake.get_nowait()
            try:
                until = self._beat()
            except Exception:  # the thread must outlive any surprise: without it every lease ends
                logger.exception("heartbeat: unexpected error, trying again")
                until = monotonic() + AGAIN
            if until < math.inf:
                ends = monotonic() + LINGER
            elif monotonic() >= ends and self._end(me):
                return
            self._planned = min(until, max(ends, monotonic() + 0.01))
            with contextlib.suppress(queue.Empty):
                self._wake.get(timeout=max(0.0, self._planned - monotonic()))

    def _end(self, me: threading.Thread) -> bool:
        with self._starting:
            self._thread = None  # first: whoever comes from here on starts another
            if self._held or self.errands or not self._wake.empty():
                self._thread = me
            return self._thread is not me

    def _beat(self) -> float:
        """Do what is due; when to do so again, infinite if there is nothing to look after."""
        now = monotonic()
        batches: dict[Leases, list[Hold]] = {}
        lost: list[tuple[Hold, str]] = []
        late: list[Hold] = []
        for hold in self._holds():
            lease = (hold.lease or 0) / 1000
            if now - hold.due > lease / 3:
                late.append(hold)
            if reason := hold.lost:
                lost.append((hold, reason))
            elif hold.due <= now + hold.slack:  # what is due soon goes along
                batches.setdefault(hold.backend, []).append(hold)
        if late:
            logger.warning(
                "heartbeat: %.1f s late for %d leases, that of %s %r among them: the interpreter was kept busy,"
                " the process was stopped, or the store was silent",
                max(now - hold.due for hold in late),
                len(late),
                late[0].backend.noun,
                late[0].name,
            )
        for backend, batch in batches.items():
            lost += self._renew(backend, batch)
        self._announce(lost)
        self.errands.run(self.follow)
        times = [min(hold.due, hold.deadline) for hold in self._holds()]
        if self.errands:
            times.append(monotonic() + AGAIN)
        return min(times, default=math.inf)

    def _holds(self) -> list[Hold]:
        found = []
        for token, reference in list(self._held.items()):
            hold = reference()
            if hold is None:  # dropped without a release: its lease ends by itself
                self._held.pop(token, None)
            else:
                found.append(hold)
        return found

    def _renew(self, backend: Leases, batch: list[Hold]) -> list[tuple[Hold, str]]:
        asked = monotonic()
        left = [max(1, min(hold.lease or 1, round((hold.until - asked) * 1000))) for hold in batch]
        try:
            answers = backend.renew(
                [Renewal(hold.name, hold.token, ttl) for hold, ttl in zip(batch, left, strict=True)]
            )
        except Exception as error:  # unknown, whatever it is: one store's trouble must not end the others' leases
            logger.warning("heartbeat: %d leases not renewed, trying again: %s", len(batch), error)
            for hold in batch:
                hold.due = monotonic() + min(AGAIN, (hold.lease or 1) / 10_000)
            return []
        finally:
            backend.rest()
        for hold, ttl, renewed in zip(batch, left, answers, strict=True):
            if renewed:
                hold.renewed(asked, ttl)
                if renewed is Kept.ASKED and hold.ask() and hold.on_asked is not None:
                    _aside([hold.on_asked])
                if ttl < (hold.lease or 1) and hold.last:
                    hold.due = hold.until  # that was the last one, unless extended meanwhile: its timeout ends it
        return [
            (hold, hold.lost or GONE)  # at its timeout the key may end before this request arrives
            for hold, renewed in zip(batch, answers, strict=True)
            if not renewed and not hold.released
        ]

    def _announce(self, lost: list[tuple[Hold, str]]) -> None:
        told = []
        for hold, reason in lost:
            self._held.pop(hold.token, None)
            if hold.lose(reason) and hold.on_lost is not None:
                told.append(partial(hold.on_lost, reason))
        if told:
            _aside(told)


def _aside(told: Sequence[Callable[[], None]]) -> None:
    # From a thread of its own: who listens may block, and the other leases must not wait for that.
    threading.Thread(target=_tell, args=(told,), name="tasklock-lost", daemon=True).start()


def _tell(told: Sequence[Callable[[], None]]) -> None:
    for listener in told:
        try:
            listener()
        except Exception:
            logger.exception("a listener to a lock that is lost, or asked for, failed")
    release_connections()  # a listener may ask the database, and nobody else closes those of a thread that ends


heartbeat = Heartbeat()
"""The one of this process."""


def _after_fork() -> None:
    heartbeat.__init__()  # type: ignore[misc]  # in place: others have imported it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
