"""The thread of a worker's main process that renews the leases of all messages of the worker.

These are the messages of running tasks with late acknowledgement, prefetched ones, and those with a countdown. The
thread also requeues messages that are no longer renewed; kombu checks only every hundred seconds, and not while the
main process runs a task.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from django_tasklock import counts, signals
from django_tasklock.celery.messages import marks
from django_tasklock.celery.messages.detached import DetachedMessages
from django_tasklock.celery.messages.index import Index
from django_tasklock.celery.messages.timeouts import period_of
from django_tasklock.celery.messages.vouching import Vouching
from django_tasklock.db.forks import no_fork
from django_tasklock.logs import log
from django_tasklock.types import monotonic

CHECKS_PER_LEASE = 20
"""Checks for abandoned messages in one lease: a dead worker's messages start so much later at most."""
LONGEST_CHECK_PERIOD = 3.0
"""The longest interval between two such checks, in seconds."""
RETRY_DELAY = 1.0
"""Seconds until a failed request is retried."""
MARK_CHECK_PERIOD = 60.0
"""Seconds between two checks for workers that do not renew; one worker does it for all."""
HOUR = 3600.0
CLOCK_TOLERANCE = 5.0
"""The difference in seconds to the server's clock above which a warning is logged, if it is over a quarter of a
lease too."""
MUTEX_RIGHTS = "+set +get +del +evalsha +script ~"
"""The rights for a mutex of kombu's, and for one of ours."""

_running: list[Renewer] = []


class Renewer:
    """The renewals of one worker. It is given each new connection, and stopped at the end."""

    def __init__(self, app: Any, node: str, lease: float, prefetch_timeout: float) -> None:
        self.node = node
        self.lease = lease
        self.period = period_of(lease)
        self._app = app
        self._fetched: Callable[[], list[Any]] = list
        self._index: Index | None = None
        self._connection: Any = None
        self._stop_requested = threading.Event()
        self._wake = threading.Event()
        self.detached = DetachedMessages(self._wake.set)
        """The messages of running tasks whose connection is lost."""
        self.vouching = Vouching(prefetch_timeout, lease)
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self._renewed = monotonic()
        self._last_interruption = -lease
        """When this worker last failed to renew in time, or the server was started. Abandoned messages are not
        requeued until a lease after that, so that the other workers have had time to renew theirs."""
        self._failing = False
        self._refused: set[str] = set()
        """The commands that the broker refuses, which are logged once each."""
        self._late_renewals: deque[tuple[float, float]] = deque(maxlen=100)
        self._unmarked: list[str] = []
        self._id = os.urandom(4).hex()
        self._namesakes: dict[str, float] | None = None
        """The last renewals of other workers of this name, by id; ``None``: it has not looked for them yet."""
        self._mark: marks.Mark | None = None
        """The one that it has left in the broker."""
        self._marks_checked = -MARK_CHECK_PERIOD

    # What others read

    @property
    def alive(self) -> bool:
        """Whether its thread runs, in this process."""
        return self._thread is not None and self._thread.is_alive() and self._process == os.getpid()

    @property
    def late(self) -> float:
        """Seconds by which the current renewal is late; 0 if it is not."""
        late = monotonic() - self._renewed - self.period
        return late if late > self.period / 2 else 0.0

    # What the worker calls

    def use_connection(self, connection: Any, fetched: Callable[[], list[Any]]) -> None:
        """Start or continue with this connection of the worker. ``fetched`` returns the worker's messages."""
        with no_fork():
            self._connection, self._fetched = connection, fetched
            if not self.alive and not self._stop_requested.is_set():
                self._renewed = monotonic()
                _running[:] = [*(one for one in _running if one.alive), self]
                self._thread = threading.Thread(target=self._run, name="tasklock-messages", daemon=True)
                self._thread.start()
        self._wake.set()

    def stop(self) -> None:
        """Stop: the worker has no messages any more."""
        self._stop_requested.set()
        self._wake.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(self.period)

    # The thread

    def _run(self) -> None:
        current: Any = None
        checked = -self.lease
        due = 0.0
        while not self._stop_requested.is_set():
            try:
                with no_fork():
                    # A new connection may be to another server, after a failover in kombu.
                    if current is not (connection := self._connection):
                        self._connect(connection)
                        current, due = connection, 0.0
                    self.detached.send_settlements(self._current_index)
                    if monotonic() >= due:
                        self._renew()
                        due = self._renewed + self.period
                    if monotonic() - checked >= self._check_period:
                        checked = monotonic()
                        self._requeue_abandoned()
                self._check_marks()
                pause = min(due, checked + self._check_period) - monotonic()
            except BaseException as error:  # any error may be temporary
                self._handle_failure(error)
                pause = min(RETRY_DELAY, self.period)
            self._wake.wait(max(0.01, pause))
            self._wake.clear()
        self._close()

    @property
    def _check_period(self) -> float:
        return min(LONGEST_CHECK_PERIOD, self.lease / CHECKS_PER_LEASE)

    def _connect(self, connection: Any) -> None:
        if self._index is not None:
            self._index.close()
        self._index = Index(connection, self.lease, min(5.0, self.period))

    @property
    def _current_index(self) -> Index:
        assert self._index is not None
        return self._index

    def _renew(self) -> None:
        index = self._current_index
        is_new = not index.connected
        messages = self._fetched() + self.detached.messages
        tags = [message.delivery_tag for message in messages if message not in self.vouching.withheld]
        began = monotonic()
        index.renew(tags)  # first: nothing that only informs may stand in its way
        if is_new:
            self._check_server(index)
        self._report_lateness(began - self._renewed - self.period, len(tags))
        self._renewed, self._failing = began, False
        while self._late_renewals and self._late_renewals[0][0] < began - HOUR:
            self._late_renewals.popleft()
        for message in self.vouching.review(messages):
            index.requeue(message.delivery_tag)
        now = time.time()
        worst = max((late for _, late in self._late_renewals), default=0.0)
        until = now + marks.validity_of(self.lease)
        mark = marks.Mark(self.node, self.lease, now, until, len(tags), round(worst, 1), self.vouching.stuck, self._id)
        with self._optional("HSET", "+hset +hdel ~"):
            marks.write(index, mark)
            self._mark = mark
        if (before := self._namesakes) != {}:
            self._namesakes = {}
            with self._optional("HGETALL", "+hgetall +hdel ~"):
                self._namesakes = self._find_namesakes(marks.read(index), before or {})

    def _find_namesakes(self, known: list[marks.Mark], before: dict[str, float]) -> dict[str, float]:
        """Return who may be another worker of this name, until one has renewed since ``before``: that is logged once.

        One that was killed just now has a mark, too, and does not renew.
        """
        found = {
            mark.worker: mark.at
            for mark in known
            if mark.node == self.node and mark.worker != self._id and mark.is_current
        }
        if any(at > before.get(worker, at) for worker, at in found.items()):
            log(
                logging.WARNING,
                "messages: another worker on this broker is called %s, too. Each renews its own messages, but Celery's"
                " remote control and whatever shows workers by name takes them for one: start each with a name of its"
                " own (celery worker -n)",
                self.node,
            )
            return {}
        return found

    def _report_lateness(self, late: float, messages: int) -> None:
        """Log and signal a renewal that was late by much."""
        if late > self.period:
            self._last_interruption = monotonic()
        if late <= self.lease / 2 or not messages:
            return
        self._late_renewals.append((monotonic(), late))
        over = late + self.period >= self.lease
        log(
            logging.WARNING,
            "messages: the lease of %d was renewed %.1f s late%s",
            messages,
            late,
            ": it was over, and what of it was put back is delivered to another worker, too" if over else "",
        )
        counts.count(counts.LATE, "")
        signals.send(signals.messages_late, self.node, late=late, messages=messages, over=over)

    def _check_server(self, index: Index) -> None:
        """Do what is necessary once per connection."""
        uptime = None
        with self._optional("INFO", "+info"):
            uptime = index.uptime()
        if uptime is not None and uptime < self.lease:
            self._last_interruption = max(self._last_interruption, monotonic() - uptime)
        silence = monotonic() - self._renewed
        if silence < self.lease or (uptime is not None and uptime <= silence):
            # No worker can have requeued them meanwhile, and the server may have lost them. In other cases another
            # worker may have run one to its end; written down again, it would start once more.
            self.detached.restore_entries(index)
        clock_lead = 0.0
        with self._optional("TIME", "+time"):
            clock_lead = index.clock_lead()
        if abs(clock_lead) > max(CLOCK_TOLERANCE, self.lease / 4):
            log(
                logging.WARNING,
                "messages: the clock of this machine is %.0f s %s the broker's: workers whose clocks differ by more"
                " than %g s take each other's messages for abandoned",
                abs(clock_lead),
                "behind" if clock_lead > 0 else "ahead of",
                self.lease,
            )

    def _requeue_abandoned(self) -> None:
        """Requeue messages that are no longer renewed."""
        if monotonic() - self._last_interruption >= self.lease and not self.late:
            with self._optional("SET", MUTEX_RIGHTS):
                self._current_index.restore()

    @contextlib.contextmanager
    def _optional(self, command: str, rights: str) -> Iterator[None]:
        """Go on without a command that the broker refuses to this user, and log once what to grant."""
        index = self._current_index
        try:
            yield
        except index.refusal as error:
            if command in self._refused:
                return
            self._refused.add(command)
            log(
                logging.WARNING,
                "messages: the broker refuses %s to the user %r, leases are renewed without it: %s. If it has no right"
                " to it, run: %s",
                command,
                index.user,
                error,
                index.grant(rights),
            )

    def _check_marks(self) -> None:
        """Once a minute, in one of the renewing workers, log which workers do not renew."""
        if monotonic() - self._marks_checked < MARK_CHECK_PERIOD:
            return
        self._marks_checked = monotonic()
        mine = False
        with self._optional("SET", MUTEX_RIGHTS):
            mine = self._current_index.set_once(marks.CHECK_MUTEX, MARK_CHECK_PERIOD)
        if mine:
            with self._optional("HGETALL", "+hgetall +hdel ~"):
                known = marks.read(self._current_index)
                threading.Thread(target=self._log_unmarked, args=(known,), name="tasklock-marks", daemon=True).start()

    def _log_unmarked(self, known: list[marks.Mark]) -> None:
        try:
            found = marks.without_mark(self._app, known)
            if found:  # a worker that has just started may have left its mark by now
                again = marks.without_mark(self._app, marks.read_marks(self._app))
                found = [node for node in found if node in again]
        except BaseException as error:
            log(logging.INFO, "messages: the workers on this broker could not be pinged: %r", error)
            return
        if found and found != self._unmarked:
            log(
                logging.ERROR,
                "messages: these workers on this broker do not renew what they have, and each of their tasks that takes"
                " longer than %g s, or waits so long for its countdown, is started a second time: %s. Give them this"
                " app and version, or set TASKLOCK['MESSAGE_LEASE'] to 3600 until they have it",
                self.lease,
                ", ".join(found),
            )
        self._unmarked = found

    def _handle_failure(self, error: BaseException) -> None:
        if not self._failing:
            log(logging.WARNING, "messages: their leases cannot be renewed, retrying: %r", error)
        self._failing = True
        with no_fork():
            if self._index is not None:
                self._index.close()

    def _close(self) -> None:
        try:
            with no_fork():
                if self._index is not None:
                    self.detached.send_settlements(self._index)
                    if self._mark is not None:
                        marks.remove(self._index, self._mark)
                    self._index.close()
        except BaseException as error:
            log(logging.DEBUG, "messages: the mark of this worker was not removed: %r", error)


def running() -> list[Renewer]:
    """Return the renewers of this process: one in a worker's main process, none elsewhere."""
    return [renewal for renewal in _running if renewal.alive]
