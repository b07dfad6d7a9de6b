"""One thread per process that renews every lease of it, in batches, a third of a lease apart.

It starts with the first lock that has a lease, ends a little after the last, and knows
three outcomes of a renewal: renewed, lost (the store said so), unknown (no answer).
Unknown is tried again until the local deadline, where it turns into lost. It also
lets the ``Reconciler`` of the process do what is left.

The weakness of a thread: code that keeps the interpreter to itself for longer than the
lease starves it. The lock is lost then, and is seen to be lost: deadlines are compared
whenever somebody asks, not only when this thread runs.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import queue
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from django_tasklock.backends.contract.leases import LeaseStore
from django_tasklock.db.connections import release_connections
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.locks import events
from django_tasklock.locks.lease import GONE, Lease
from django_tasklock.locks.reconcile import AGAIN, Reconciler, close_idle_quietly
from django_tasklock.logs import log
from django_tasklock.types import AcquireRequest, Renewal, RenewalResult, monotonic

FAREWELL = 5.0  # seconds for which the end of a process is put off at the most, to give back what it has left
LINGER = 5.0  # seconds the thread stays when there is nothing left to renew
CHUNK = 100  # leases renewed by one request: Redis serves nobody else meanwhile
HALVED = 16  # failed requests of one beat that are sent again in halves: enough to find two leases among a hundred
UNANSWERED = BackendUnavailable("the part of the store where they are could not be asked")
SILENT = 2.0  # seconds that one beat may spend on failing requests to a store: the leases of others wait


class Heartbeat:
    """The renewals of one process. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._held: dict[str, weakref.ref[Lease]] = {}
        self.reconciler = Reconciler()
        # Both in C, and the lock re-entrant: an exception out of a signal handler (a soft time limit) can
        # leave neither half taken, as it can a Condition, and a collected lock may call release_later() anywhere.
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._starting = threading.RLock()
        self._planned = math.inf  # when the thread wakes by itself; infinite while it does not sleep
        self.thread: threading.Thread | None = None
        """The one that renews; ``None`` while none is needed."""

    def follow(self, lease: Lease) -> None:
        """Renew ``lease`` until it is released, lost, or at its timeout."""
        self._held[lease.token] = weakref.ref(lease)
        # The thread is to wake sooner; or it should have woken long ago, and may have died.
        if not lease.due - (lease.span or 0) / 3000 <= self._planned <= lease.due:
            self.rouse()

    def forget(self, lease: Lease) -> None:
        """Stop; a renewal that is under way cannot bring a released lock back."""
        lease.released = True
        self._held.pop(lease.token, None)
        self.reconciler.pending.pop(lease.token, None)

    def release_later(self, lease: Lease, longest: int) -> None:
        """Release ``lease`` as soon as the store answers; after ``longest`` ms it has ended by itself."""
        self.reconciler.release_later(lease, longest)  # first: a time limit may strike in between
        self.forget(lease)
        self.rouse()

    def release_now(self, lease: Lease, longest: int) -> None:
        """Release ``lease`` here and now, for the process may be about to end; else ``release_later`` it."""
        self.reconciler.release_later(lease, longest)
        self.forget(lease)
        try:
            self.reconciler.free(lease.token)
        except Exception as error:  # whoever was interrupted hears of that, and not of this
            log(logging.WARNING, "%s %r: not given back yet, trying on: %s", lease.backend.noun, lease.name, error)
        finally:
            if self.reconciler:
                self.rouse()

    def flush(self, seconds: float = FAREWELL) -> bool:
        """Wait for ``seconds`` at most until what was abandoned is given back; whether it is. For a process's end."""
        ends = monotonic() + seconds
        while not self.reconciler.settled and monotonic() < ends:
            if not self.alive:  # at the end of a process none can be started
                self.reconciler.free_all()
            time.sleep(0.005)
        return not self.reconciler.leftovers

    def ensure_alive(self) -> None:
        """Start the thread again if it has died of something: for whoever sees that it is missing."""
        if (self._held or self.reconciler) and not self.alive:
            self.rouse()

    def acquire_later(self, lease: Lease, request: AcquireRequest) -> None:
        """Take the lock that ``lease`` is without as soon as the store answers, and renew it from then on."""
        self.reconciler.acquire_later(lease, request)
        self.rouse()

    @property
    def alive(self) -> bool:
        """Whether the thread runs: it need not while nothing has a lease."""
        thread = self.thread
        return thread is not None and thread.is_alive()

    @property
    def late(self) -> float:
        """Seconds by which the renewal is late that is most overdue; 0 if all are in good time."""
        now = monotonic()
        overdue = [now - lease.due for lease in self.leases() if now - lease.due > (lease.span or 0) / 3000]
        return max(overdue, default=0.0)

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, token: object) -> bool:
        return token in self._held

    def clear(self) -> None:
        """Renew nothing any more, and give nothing back: what is in the store ends with its lease."""
        self._held.clear()
        self.reconciler.clear()

    def rouse(self) -> None:
        """Let the thread look at once what is due; start it if there is none."""
        self._wake.put(None)
        with self._starting:
            if not self.alive:
                died = self.thread is not None
                self.thread = threading.Thread(target=self._run, name="tasklock-heartbeat", daemon=True)
                try:
                    self.thread.start()
                except BaseException:
                    self.thread = None  # if it was started all the same, it sees that it is not wanted
                    raise
                if died:
                    log(logging.ERROR, "heartbeat: its thread had died, another one was started")

    def _run(self) -> None:
        me = threading.current_thread()
        try:
            while not self._beats(me):
                pass
        finally:
            if self.thread is me and not sys.is_finalizing():  # of what, was told by threading.excepthook
                self._planned = math.inf
                self._rouse_another(me)

    def _rouse_another(self, me: threading.Thread) -> None:
        with self._starting:
            if self.thread is me:
                self.thread = None
        if self._held or self.reconciler:
            self.rouse()
            log(logging.ERROR, "heartbeat: its thread died, another one was started")

    def _beats(self, me: threading.Thread) -> bool:
        """Beat until there is nothing to do any more; False: something unexpected happened, begin again."""
        ends = monotonic() + LINGER
        try:
            while self.thread is me:
                self._planned = math.inf
                with contextlib.suppress(queue.Empty):
                    while True:
                        self._wake.get_nowait()
                until = self.beat()
                if until < math.inf:
                    ends = monotonic() + LINGER
                elif monotonic() >= ends and self.end(me):
                    break
                self._planned = min(until, max(ends, monotonic() + 0.01))
                with contextlib.suppress(queue.Empty):
                    self._wake.get(timeout=max(0.0, self._planned - monotonic()))
        except BaseException:  # the thread must outlive any surprise: without it every lease ends
            log(logging.ERROR, "heartbeat: unexpected error, trying again", trace=True)
            with contextlib.suppress(queue.Empty):
                self._wake.get(timeout=AGAIN)
            return False
        return True

    def end(self, me: threading.Thread) -> bool:
        """Let the thread ``me`` be the one no more, unless there is something to do again; return whether it is not."""
        with self._starting:
            self.thread = None  # first: whoever comes from here on starts another
            if self._held or self.reconciler or not self._wake.empty():
                self.thread = me
            return self.thread is not me

    def beat(self) -> float:
        """Do what is due; return when to do so again, infinite if there is nothing to look after."""
        now = monotonic()
        batches: dict[LeaseStore, list[Lease]] = {}
        lost: list[tuple[Lease, str]] = []
        late: list[Lease] = []
        for lease in self.leases():
            span = (lease.span or 0) / 1000
            if now - lease.due > span / 3:
                late.append(lease)
            if reason := lease.lost:
                lost.append((lease, reason))
            elif lease.due <= now + lease.slack:  # what is due soon goes along
                batches.setdefault(lease.backend, []).append(lease)
        if late:
            log(
                logging.WARNING,
                "heartbeat: %.1f s late for %d leases, that of %s %r among them: the interpreter was kept busy,"
                " the process was stopped, or the store was silent",
                max(now - lease.due for lease in late),
                len(late),
                late[0].backend.noun,
                late[0].name,
            )
        for backend, batch in batches.items():
            lost += self.renew(backend, batch)
        self.announce(lost)
        self.reconciler.run(self.follow, lambda lease, reason: self.announce([(lease, reason)]))
        times = [min(lease.due, lease.deadline) for lease in self.leases()]
        if self.reconciler:
            times.append(monotonic() + self.reconciler.pause)
        return min(times, default=math.inf)

    def leases(self) -> list[Lease]:
        """Return the leases that are renewed."""
        found = []
        for token, reference in list(self._held.items()):
            lease = reference()
            if lease is None:  # dropped without a release: its lease ends by itself
                self._held.pop(token, None)
            else:
                found.append(lease)
        return found

    def renew(self, backend: LeaseStore, batch: list[Lease]) -> list[tuple[Lease, str]]:
        """Renew ``batch`` by requests that know nothing of each other; return those that are lost, and why.

        What a failing request was about is unknown, whatever the error is, and is asked again in halves: one lock
        that makes every request fail must not end the leases beside it.
        """
        batch.sort(key=lambda lease: lease.due)
        parts = deque(batch[start : start + CHUNK] for start in range(0, len(batch), CHUNK))
        lost: list[tuple[Lease, str]] = []
        unknown, failed, spent = 0, 0, 0.0
        trouble: Exception | None = None
        try:
            while parts and spent < SILENT:
                part, sent = parts.popleft(), monotonic()
                left = [max(1, min(lease.span or 1, round((lease.until - sent) * 1000))) for lease in part]
                try:
                    answers = backend.renew(
                        [Renewal(lease.name, lease.token, ttl) for lease, ttl in zip(part, left, strict=True)]
                    )
                except Exception as error:
                    trouble, failed, spent = error, failed + 1, spent + monotonic() - sent
                    if len(part) > 1 and failed <= HALVED:
                        parts += (part[: len(part) // 2], part[len(part) // 2 :])
                    else:
                        _put_off(part)
                        unknown += len(part)
                    continue
                lost += _renewed(part, left, answers, sent)
                if silent := [
                    lease for lease, said in zip(part, answers, strict=True) if said is RenewalResult.UNKNOWN
                ]:
                    trouble, spent = UNANSWERED, spent + monotonic() - sent
                    unknown += len(silent)
                    _put_off(silent)
        finally:
            close_idle_quietly(backend)
        unknown += sum(map(len, parts))  # still due, and the first next time
        if trouble is not None and unknown:
            log(logging.WARNING, "heartbeat: %d leases not renewed, trying again: %s", unknown, trouble)
        return lost

    def announce(self, lost: list[tuple[Lease, str]]) -> None:
        """Renew these no more, and tell those who listen, each with the reason, from a thread of its own."""
        told = []
        for lease, reason in lost:
            self._held.pop(lease.token, None)
            if lease.lose(reason) and lease.lock is not None:
                told.append(partial(events.lost, lease, reason))
        if told:
            tell_aside(told)


def _put_off(part: list[Lease]) -> None:
    """Renew these a little later."""
    for lease in part:
        lease.due = monotonic() + min(AGAIN, (lease.span or 1) / 10_000)


def _renewed(
    part: list[Lease], left: list[int], answers: Sequence[RenewalResult], sent: float
) -> Iterator[tuple[Lease, str]]:
    """Take over what the store said to a request sent at ``sent``; those that are lost, and why."""
    for lease, ttl, renewed in zip(part, left, answers, strict=True):
        if renewed is RenewalResult.UNKNOWN:
            continue
        if renewed:
            lease.renewed(sent, ttl)
            if renewed is RenewalResult.ASKED and lease.request_release() and lease.lock is not None:
                tell_aside([partial(events.release_requested, lease)])
            if ttl < (lease.span or 1) and lease.last:
                lease.due = lease.until  # that was the last one, unless extended meanwhile: its timeout ends it
        elif not lease.released:
            yield lease, lease.lost or GONE  # at its timeout the key may end before this request arrives


def tell_aside(told: Sequence[Callable[[], None]]) -> None:
    """Call these from a thread of its own: who listens may block, and the other leases must not wait for that."""
    try:
        threading.Thread(target=tell, args=(told,), name="tasklock-lost", daemon=True).start()
    except RuntimeError:  # there can be no more threads: they are told all the same
        tell(told)


def tell(told: Sequence[Callable[[], None]]) -> None:
    """Call these, whatever the others raise, and leave no database connection behind."""
    for listener in told:
        try:
            listener()
        except BaseException:  # one that ends its thread does not end the others' word
            log(logging.ERROR, "a listener to a lock that is lost, or asked for, failed", trace=True)
    release_connections()  # a listener may ask the database, and nobody else closes those of a thread that ends


heartbeat = Heartbeat()
"""The one of this process."""


atexit.register(heartbeat.flush)


def forget() -> None:
    """Renew nothing of this process any more."""
    heartbeat.clear()


def after_fork() -> None:
    """Begin without leases and without a thread, in place: others have imported it."""
    heartbeat.__init__()  # type: ignore[misc]
