"""One thread per process that renews all of its leases in batches, each after a third of its time.

It starts with the first lock that has a lease and ends a little after the last. A renewal has three outcomes: renewed,
lost (the store said so) and unknown (no answer). An unknown one is repeated until the local deadline; then the lease is
lost. The thread also runs the ``Reconciler`` of the process. What it asks the database it asks on a connection of its
own, which it keeps while there are leases there: bodies may have taken every other one.

The weakness of a thread: code that does not release the interpreter for longer than the lease starves it. The lock is
lost then, and known to be lost: deadlines are compared whenever the lease is used, not only when this thread runs.
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
from typing import NamedTuple

from django_tasklock.backends.contract.stores import LeaseStore
from django_tasklock.db.connections import release_connections
from django_tasklock.db.own import OwnConnections
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.locks import events
from django_tasklock.locks.lease import GONE, Lease
from django_tasklock.locks.reconcile import AGAIN, Reconciler
from django_tasklock.logs import log
from django_tasklock.process import check_process
from django_tasklock.types import AcquireRequest, Renewal, RenewalResult, monotonic

EXIT_TIMEOUT = 5.0  # seconds by which the exit of a process is delayed at most, to release what it has left
LINGER = 5.0  # seconds the thread stays when nothing is left to renew
SHORT = 1.0  # seconds, or a tenth of the lease, for which a lease has no connection kept: most are released by then
CHUNK = 100  # leases renewed by one request: Redis serves no other client meanwhile
MOST_HALVED = 16  # failed requests of one round that are repeated in halves: enough to find two leases in a hundred
UNANSWERED = BackendUnavailable("the part of the store where they are could not be asked")
FAILING = 2.0  # seconds that one round may spend on failing requests to a store: the leases of other stores wait


class _Followed(NamedTuple):
    """A lease to be renewed, and what is logged of it if it is dropped."""

    lease: weakref.ref[Lease]
    noun: str
    name: str
    acquired_in: tuple[str, int]
    kept: Lease | None
    """The lease itself, if it lasts until it is released: then the process keeps it."""

    def log_drop(self, then: str) -> None:
        """Log that nobody can release it any more, and what happens ``then``."""
        text = (
            "%s %r was not released: nothing has its lease any more, and its object was collected. %s. It was"
            " acquired in %s, line %d; use it as a with block, or keep the object for as long as you need the lock"
        )
        log(logging.WARNING, text, self.noun, self.name, then, *self.acquired_in)


class Heartbeat:
    """The renewals of one process. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._held: dict[str, _Followed] = {}
        self._kept: set[str] = set()
        """The tokens of dropped leases that the process keeps."""
        self.reconciler = Reconciler()
        self._connections = OwnConnections()
        # Both are implemented in C, and the lock is re-entrant: unlike a Condition, neither is left half acquired by an
        # exception from a signal handler, a soft time limit: no other lock of the process would be renewed.
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._starting = threading.RLock()
        self._wakes_at = math.inf  # when the thread wakes by itself; infinite while it does not sleep
        self.thread: threading.Thread | None = None
        """The thread that renews; ``None`` while none is needed."""

    def follow(self, lease: Lease) -> None:
        """Renew ``lease`` until it is released, lost or at its timeout."""
        kept = lease if lease.until_released else None
        self._held[lease.token] = _Followed(weakref.ref(lease), lease.backend.noun, lease.name, lease.acquired_in, kept)
        # The thread has to wake sooner; or it should have woken long ago and may have died.
        if not lease.renew_at - (lease.lease_ms or 0) / 3000 <= self._wakes_at <= lease.renew_at:
            self.wake_thread()

    def forget(self, lease: Lease) -> None:
        """Stop renewing ``lease``. A renewal that is under way does not restore a released lock."""
        lease.released = True
        self._held.pop(lease.token, None)
        self.reconciler.pending.pop(lease.token, None)
        self._close_unneeded()

    def release_later(self, lease: Lease, longest: int) -> None:
        """Release ``lease`` as soon as the store answers. After ``longest`` milliseconds it has expired."""
        self.reconciler.release_later(lease, longest)
        self.forget(lease)
        self.wake_thread()

    def flush(self, seconds: float = EXIT_TIMEOUT) -> bool:
        """Wait at most ``seconds`` for leases that were given up to be released, before the process exits.

        Return whether all are.
        """
        check_process()
        ends = monotonic() + seconds
        while not self.reconciler.settled and monotonic() < ends:
            if not self.alive:  # an exiting process cannot start a thread
                self.reconciler.free_all()
            time.sleep(0.005)
        return not self.reconciler.leftovers

    def ensure_alive(self) -> None:
        """Start the thread again if it is missing although it is needed."""
        check_process()
        if (self._held or self.reconciler) and not self.alive:
            self.wake_thread()

    def acquire_later(self, lease: Lease, request: AcquireRequest) -> None:
        """Acquire the lock for ``lease`` as soon as the store answers, and renew it from then on."""
        self.reconciler.acquire_later(lease, request)
        self.wake_thread()

    @property
    def alive(self) -> bool:
        """Whether the thread runs. It does not have to while no lock has a lease."""
        check_process()
        thread = self.thread
        return thread is not None and thread.is_alive()

    @property
    def late(self) -> float:
        """Seconds by which the most overdue renewal is late; 0 if none is."""
        now = monotonic()
        late = ((now - lease.renew_at, (lease.lease_ms or 0) / 3000) for lease in self.leases())
        return max((seconds for seconds, third in late if seconds > third), default=0.0)

    def __len__(self) -> int:
        check_process()
        return len(self._held)

    def __contains__(self, token: object) -> bool:
        return token in self._held

    def clear(self) -> None:
        """Forget all leases without releasing them: in the store they expire."""
        self._held.clear()
        self.reconciler.clear()
        self._close_unneeded()

    def _close_unneeded(self) -> None:
        """Let the thread close its connections now if no lease is left: a database can be dropped then."""
        if self._connections.open and not self._held:
            self._wake.put(None)

    def wake_thread(self) -> None:
        """Wake the thread, or start it."""
        self._wake.put(None)
        with self._starting:
            if not self.alive:
                died = self.thread is not None
                self.thread = threading.Thread(target=self._run, name="tasklock-heartbeat", daemon=True)
                try:
                    self.thread.start()
                except BaseException as error:
                    self.thread = None  # if it was started nevertheless, it sees that it is not the one and ends
                    if not isinstance(error, RuntimeError):
                        raise
                    # The process ends, or may have no more threads: until then a lock is as good as its lease.
                    log(logging.WARNING, "heartbeat: not started, so no lease is renewed: %s", error)
                    return
                if died:
                    log(logging.ERROR, "heartbeat: its thread had died, another one was started")

    def _run(self) -> None:
        me = threading.current_thread()
        try:
            while not self._run_rounds(me):
                pass
        finally:
            if self.thread is me and not sys.is_finalizing():  # threading.excepthook has reported the exception
                self._wakes_at = math.inf
                self._start_another(me)
            release_connections()

    def _start_another(self, me: threading.Thread) -> None:
        with self._starting:
            if self.thread is me:
                self.thread = None
        if self._held or self.reconciler:
            self.wake_thread()
            log(logging.ERROR, "heartbeat: its thread died, another one was started")

    def _run_rounds(self, me: threading.Thread) -> bool:
        """Run rounds until nothing is left to do. Return False after an unexpected error: then begin again."""
        ends = monotonic() + LINGER
        try:
            while self.thread is me:
                self._wakes_at = math.inf
                with contextlib.suppress(queue.Empty):
                    while True:
                        self._wake.get_nowait()
                until = self.beat()
                if until < math.inf:
                    ends = monotonic() + LINGER
                elif monotonic() >= ends and self.end(me):
                    break
                self._wakes_at = min(until, max(ends, monotonic() + 0.01))
                with contextlib.suppress(queue.Empty):
                    self._wake.get(timeout=max(0.0, self._wakes_at - monotonic()))
        except BaseException:  # without the thread every lease would expire
            log(logging.ERROR, "heartbeat: unexpected error, trying again", trace=True)
            with contextlib.suppress(queue.Empty):
                self._wake.get(timeout=AGAIN)
            return False
        return True

    def end(self, me: threading.Thread) -> bool:
        """End the thread ``me``, unless there is something to do again. Return whether it ends."""
        with self._starting:
            self.thread = None  # first: a lock that is acquired from here on starts another thread
            if self._held or self.reconciler or not self._wake.empty():
                self.thread = me
            return self.thread is not me

    def beat(self) -> float:
        """Run one round: renew what is due. Return when the next round is due, infinite if nothing is left."""
        self._log_kept()
        now = monotonic()
        batches: dict[LeaseStore, list[Lease]] = {}
        lost: list[tuple[Lease, str]] = []
        late: list[Lease] = []
        for lease in self.leases():
            seconds = (lease.lease_ms or 0) / 1000
            if now - lease.renew_at > seconds / 3:
                late.append(lease)
            if reason := lease.lost:
                lost.append((lease, reason))
            elif lease.renew_at <= now + lease.renew_slack:  # those that are due soon share the request
                batches.setdefault(lease.backend, []).append(lease)
        if late:
            log(
                logging.WARNING,
                "heartbeat: %.1f s late for %d leases, that of %s %r among them: the interpreter was kept busy,"
                " the process was stopped, or the store was silent",
                max(now - lease.renew_at for lease in late),
                len(late),
                late[0].backend.noun,
                late[0].name,
            )
        used = batches.keys() | self.reconciler.backends()
        self._connections.begin({alias for backend in used if (alias := _database_of(backend)) is not None})
        for backend, batch in batches.items():
            lost += self.renew(backend, batch)
        self.announce(lost)
        self.reconciler.run(self.follow, lambda lease, reason: self.announce([(lease, reason)]))
        times = [self._keep_connected(), *(min(lease.renew_at, lease.deadline) for lease in self.leases())]
        if self.reconciler:
            times.append(monotonic() + self.reconciler.pause)
        return min(times)

    def leases(self) -> list[Lease]:
        """Return the leases to be renewed."""
        found = []
        for token, followed in list(self._held.items()):
            lease = followed.lease()
            if lease is not None:
                found.append(lease)
            elif self._held.pop(token, None) is not None:
                followed.log_drop("It is not renewed any more, and expires")
        return found

    def _keep_connected(self) -> float:
        """Keep a connection to each database with leases, and close the others. Return when to look again.

        There is none for a lease that is not renewed yet and may be a short one.
        """
        needed: set[str] = set()
        later: dict[str, float] = {}
        for lease in self.leases():
            if (alias := _database_of(lease.backend)) is not None:
                seconds = (lease.lease_ms or 0) / 1000
                long_from = lease.renew_at - seconds / 3 + min(SHORT, seconds / 10)
                if alias in self._connections.open or long_from <= monotonic():
                    needed.add(alias)
                else:
                    later[alias] = min(long_from, later.get(alias, math.inf))
        self._connections.end(needed)
        self._close_unneeded()  # the last one may have been released meanwhile
        return min((time for alias, time in later.items() if alias not in needed), default=math.inf)

    def _log_kept(self) -> None:
        """Log once for each dropped lease that the process keeps that it does."""
        dropped = {token for token, one in list(self._held.items()) if one.kept is not None and one.kept.dropped}
        for token in dropped - self._kept:
            if (followed := self._held.get(token)) is not None:
                followed.log_drop("This process renews it until it ends, because the lock has no timeout")
        self._kept = dropped

    def renew(self, backend: LeaseStore, batch: list[Lease]) -> list[tuple[Lease, str]]:
        """Renew ``batch`` in separate requests. Return the lost leases, each with the reason.

        The leases of a failed request are unknown, whatever the error is, and are requested again in halves: one lock
        that makes every request fail must not end the other leases.
        """
        batch.sort(key=lambda lease: lease.renew_at)
        parts = deque(batch[start : start + CHUNK] for start in range(0, len(batch), CHUNK))
        lost: list[tuple[Lease, str]] = []
        unknown, failed, spent = 0, 0, 0.0
        trouble: Exception | None = None
        while parts and spent < FAILING:
            part, sent = parts.popleft(), monotonic()
            ttls = [max(1, min(lease.lease_ms or 1, round((lease.until - sent) * 1000))) for lease in part]
            try:
                answers = backend.renew(
                    [Renewal(lease.name, lease.token, ttl) for lease, ttl in zip(part, ttls, strict=True)]
                )
            except Exception as error:
                trouble, failed, spent = error, failed + 1, spent + monotonic() - sent
                if len(part) > 1 and failed <= MOST_HALVED:
                    parts += (part[: len(part) // 2], part[len(part) // 2 :])
                else:
                    _postpone(part)
                    unknown += len(part)
                continue
            lost += _renewed(part, ttls, answers, sent)
            if unanswered := [
                lease for lease, said in zip(part, answers, strict=True) if said is RenewalResult.UNKNOWN
            ]:
                trouble, spent = UNANSWERED, spent + monotonic() - sent
                unknown += len(unanswered)
                _postpone(unanswered)
        unknown += sum(map(len, parts))  # still due, so they come first in the next round
        if trouble is not None and unknown:
            log(logging.WARNING, "heartbeat: %d leases not renewed, trying again: %s", unknown, trouble)
        return lost

    def announce(self, lost: list[tuple[Lease, str]]) -> None:
        """Stop renewing lost leases, and report each with its reason from a thread of its own."""
        noticed = []
        for lease, reason in lost:
            self._held.pop(lease.token, None)
            if lease.mark_lost(reason):
                noticed.append((lease, reason))
        report_losses(noticed)


def _database_of(backend: LeaseStore) -> str | None:
    """Return the alias of the store's database. ``None`` also if it cannot be told: each of its verbs says why."""
    try:
        return backend.database
    except Exception:
        return None


def _postpone(part: list[Lease]) -> None:
    """Make the renewal of these leases due again a little later."""
    for lease in part:
        lease.renew_at = monotonic() + min(AGAIN, (lease.lease_ms or 1) / 10_000)


def _renewed(
    part: list[Lease], ttls: list[int], answers: Sequence[RenewalResult], sent: float
) -> Iterator[tuple[Lease, str]]:
    """Store the answers to a request that was sent at ``sent``. Yield the lost leases, each with the reason."""
    for lease, ttl, renewed in zip(part, ttls, answers, strict=True):
        if renewed is RenewalResult.UNKNOWN:
            continue
        if renewed:
            lease.renewed(sent, ttl)
            if renewed is RenewalResult.ASKED and lease.mark_asked() and lease.lock is not None:
                report_in_thread([partial(events.release_requested, lease)])
            if ttl < (lease.lease_ms or 1) and lease.reaches_timeout:
                lease.renew_at = lease.until  # that was the last renewal, unless the lease is extended
        elif not lease.released:
            yield lease, lease.lost or GONE  # at its timeout the key may expire before the request arrives


def loss_reports(lost: Sequence[tuple[Lease, str]]) -> list[Callable[[], object]]:
    """Return what is to be called for these lost leases, each with its reason.

    All ``on_lost`` come first, before anything is logged, sent or counted: each ends a body that runs without its lock,
    and where the store is silent every signal that is counted there takes as long as a request may.
    """
    lost = [(lease, reason) for lease, reason in lost if lease.lock is not None]
    callbacks = [partial(lease.on_lost, reason) for lease, reason in lost if lease.on_lost is not None]
    return [*callbacks, *(partial(events.lost, lease, reason) for lease, reason in lost)]


def report_losses(lost: Sequence[tuple[Lease, str]]) -> None:
    """Report these lost leases, each with its reason, from a thread of its own."""
    if reports := loss_reports(lost):
        report_in_thread(reports)


def report_in_thread(reports: Sequence[Callable[[], object]]) -> None:
    """Call ``reports`` in a thread of its own: they call listeners, which may block, and other leases must not wait."""
    try:
        threading.Thread(target=report_all, args=(reports,), name="tasklock-lost", daemon=True).start()
    except RuntimeError:  # no thread can be started any more
        report_all(reports)


def report_all(reports: Sequence[Callable[[], object]]) -> None:
    """Call ``reports``, even if some of them raise, and close the database connections of this thread."""
    for report in reports:
        try:
            report()
        except BaseException:  # SystemExit, too: the other reports are still due
            log(logging.ERROR, "a listener to a lock that is lost, or asked for, failed", trace=True)
    release_connections()  # a listener may query the database, and the thread ends here


heartbeat = Heartbeat()
"""The heartbeat of this process."""


atexit.register(heartbeat.flush)


def forget() -> None:
    """Forget all leases of this process without releasing them."""
    heartbeat.clear()


def after_fork() -> None:
    """Begin without leases and without a thread, in place: other modules have imported the object."""
    heartbeat.__init__()  # type: ignore[misc]
