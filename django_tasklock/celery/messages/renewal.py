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
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from celery import bootsteps
from celery.worker import state

from django_tasklock import counts, signals
from django_tasklock.celery.broker import message_lease
from django_tasklock.celery.messages import marks
from django_tasklock.celery.messages.held import HeldMessages
from django_tasklock.celery.messages.index import Index, lease_fetched
from django_tasklock.celery.messages.progress import Progress
from django_tasklock.celery.messages.replies import always_read, stop_fetching
from django_tasklock.celery.request import Request
from django_tasklock.db.forks import no_fork
from django_tasklock.logs import log
from django_tasklock.types import monotonic

RENEWALS = 20
"""Renewals in one lease, and looks for abandoned messages: a dead worker's start so much later at most."""
LONGEST_PERIOD = 3.0
"""The longest time between two renewals, in seconds: a worker with a shorter lease may watch the same broker."""
PATIENCE = 5.0
"""The longest time that a request may take, in seconds; a quarter of a short lease."""
RETRY_DELAY = 1.0
"""Seconds until a failed request is retried."""
CLOCK_TOLERANCE = 5.0
"""The difference in seconds to the server's clock above which a warning is logged, if it is over a quarter of a
lease too."""


class MessageLease(bootsteps.StartStopStep):
    """The bootstep of Celery's worker that begins and ends the renewals.

    It restarts with each connection of the worker to the broker; the renewer outlives them, and a warm shutdown.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._renewer: Renewer | None = None

    def include_if(self, consumer: Any) -> bool:
        """Return whether this worker's messages have leases."""
        return message_lease(consumer.app) is not None

    def start(self, consumer: Any) -> None:
        """Start or continue the renewals: the worker has connected, for the first time or again."""
        if self._renewer is None:
            lease = message_lease(consumer.app)
            assert lease is not None
            self._renewer = Renewer(consumer.hostname, lease)
            Request.in_slot_before_start = consumer.pool.uses_semaphore
        qos = consumer.task_consumer.channel.qos
        self._renewer.use_connection(consumer.connection, qos, partial(_running_in, consumer))

    def stop(self, consumer: Any) -> None:
        """Fetch no more messages. Those that the worker has are renewed until it has finished them."""
        if _ends(consumer) and consumer.task_consumer is not None:
            try:
                stop_fetching(consumer.task_consumer)
            except Exception as error:
                log(logging.WARNING, "messages: the last reply of the broker could not be read: %r", error)

    def shutdown(self, consumer: Any) -> None:
        """Stop the renewals: the worker has finished its tasks."""
        if self._renewer is not None:
            self._renewer.stop()


def _running_in(consumer: Any) -> Iterable[Any]:
    """Return the messages of the tasks that continue after a lost connection.

    None if the worker is stopping, or is configured to cancel its tasks then.
    """
    if _ends(consumer) or consumer.app.conf.worker_cancel_long_running_tasks_on_connection_loss:
        return ()
    return [request.message for request in tuple(state.active_requests)]


def _ends(consumer: Any) -> bool:
    """Return whether the worker is stopping, and not only its connection."""
    return bool(consumer.blueprint.state != bootsteps.RUN)  # type: ignore[attr-defined]  # missing in its type stubs


class Renewer:
    """The renewals of one worker. It is given each new connection, and stopped at the end."""

    def __init__(self, node: str, lease: float) -> None:
        self.node = node
        self.lease = lease
        self.period = min(LONGEST_PERIOD, lease / RENEWALS)
        self._patience = min(PATIENCE, lease / 4)
        self._stop_requested = threading.Event()
        self._wake = threading.Event()
        self._messages = HeldMessages(self._wake.set)
        self._progress = Progress(lease)
        self._thread: threading.Thread | None = None
        self._connection: Any = None
        self._connected: Any = None
        """The connection of the worker for which ``_index`` was made."""
        self._index: Index | None = None
        self._renewed = monotonic()
        self._last_interruption = -lease
        """When this worker last failed to renew in time, or the server was started. Abandoned messages are not
        requeued until a lease after that, so that the other workers have had time to renew theirs."""
        self._failing = False
        self._refused: set[str] = set()
        """The commands that the broker refuses, which are logged once each."""
        self._id = os.urandom(4).hex()
        self._mark: marks.Mark | None = None
        """The one that it has left in the broker."""

    # What the worker calls

    def use_connection(self, connection: Any, qos: Any, running: Any) -> None:
        """Start or continue with this connection of the worker. ``running``: returns the messages that run on."""
        with no_fork():
            lease_fetched(qos)
            self._messages.use_connection(connection, qos, running)
            self._progress.hook_into(qos)
            always_read(qos)
            self._connection = connection
            if self._thread is None:
                self._renewed = monotonic()
                self._thread = threading.Thread(target=self._run, name="tasklock-messages", daemon=True)
                self._thread.start()
        self._wake.set()

    def stop(self) -> None:
        """Stop: the worker has no messages any more."""
        self._stop_requested.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(PATIENCE)

    # The thread

    def _run(self) -> None:
        while not self._stop_requested.is_set():
            pause = self.period
            try:
                with no_fork():
                    self._turn()
            except BaseException as error:  # any error may be temporary
                self._handle_failure(error)
                pause = min(RETRY_DELAY, self.period)
            self._wake.wait(pause)
            self._wake.clear()
        self._close()

    def _turn(self) -> None:
        if self._connected is not (connection := self._connection):  # after a failover it may be to another server
            if self._index is not None:
                self._index.close()
            self._index = Index(connection, self.lease, self._patience)
            self._connected = connection
        index = self._index
        assert index is not None
        is_new = not index.connected
        self._messages.send_settlements(index)
        messages = self._messages.all()
        began = monotonic()
        index.renew(message.delivery_tag for message in messages)  # first: nothing else may stand in its way
        if is_new:
            self._check_server(index)
        self._report_lateness(began - self._renewed - self.period, len(messages))
        self._renewed, self._failing = began, False
        for message in self._progress.review():
            self._messages.forget(message)
            index.requeue(message.delivery_tag)
        with self._optional("HSET", "+hset +hdel ~"):
            mark = marks.Mark(self.node, self.lease, time.time(), len(messages), self._progress.stuck, self._id)
            marks.write(index, mark)
            self._mark = mark
        if began - self._last_interruption >= self.lease:
            with self._optional("ZRANGEBYSCORE or SET", "+zrangebyscore +set +get +del +evalsha +script ~"):
                index.restore()

    def _report_lateness(self, late: float, messages: int) -> None:
        """Log and signal a renewal that was late by much."""
        if late > self.lease / 4:
            self._last_interruption = monotonic()
        if late <= self.lease / 2 or not messages:
            return
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
            self._messages.write_again(index)
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

    @contextlib.contextmanager
    def _optional(self, command: str, rights: str) -> Iterator[None]:
        """Go on without a command that the broker refuses to this user, and log once what to grant.

        ``rights``: in the words of ``ACL SETUSER``, where ``~`` stands for the keys beside kombu's own.
        """
        index = self._index
        assert index is not None
        try:
            yield
        except index.refusal as error:
            if command in self._refused:
                return
            self._refused.add(command)
            log(
                logging.WARNING,
                "messages: the broker refuses %s to the user %r, leases are renewed without it: %s. If it has no right"
                " to it, run: ACL SETUSER %s %s",
                command,
                index.user,
                error,
                index.user,
                rights.replace("~", index.own_keys),
            )

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
                    self._messages.send_settlements(self._index)
                    if self._mark is not None:
                        marks.remove(self._index, self._mark)
                    self._index.close()
        except BaseException as error:
            log(logging.DEBUG, "messages: the mark of this worker was not removed: %r", error)
