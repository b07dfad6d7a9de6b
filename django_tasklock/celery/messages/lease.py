"""The bootstep of Celery's worker that renews the leases of its messages."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from celery import bootsteps
from celery.worker import state

from django_tasklock.celery.broker import message_lease
from django_tasklock.celery.messages.renewal import Renewer
from django_tasklock.celery.messages.unacked import fetched_by
from django_tasklock.celery.request import Request
from django_tasklock.conf import get_settings, milliseconds


class MessageLease(bootsteps.StartStopStep):
    """Restarts with each connection of the worker to the broker; the renewer outlives them, and a warm shutdown."""

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
            timeout = milliseconds(get_settings().PREFETCH_TIMEOUT, "PREFETCH_TIMEOUT") / 1000
            self._renewer = Renewer(consumer.app, consumer.hostname, lease, timeout)
            Request.in_slot_before_start = consumer.pool.uses_semaphore
        connection = consumer.connection
        qos = consumer.task_consumer.channel.qos
        self._renewer.detached.hook_into(qos, partial(_running_in, consumer))
        self._renewer.vouching.hook_into(qos)
        self._renewer.use_connection(connection, partial(fetched_by, connection))

    def stop(self, consumer: Any) -> None:
        """Do nothing: the worker fetches no more messages, but may still have some."""

    def shutdown(self, consumer: Any) -> None:
        """Stop the renewals: the worker has finished its tasks."""
        if self._renewer is not None:
            self._renewer.stop()


def _running_in(consumer: Any) -> Iterable[Any]:
    """Return the requests that continue after a lost connection.

    None if the worker is stopping, or is configured to cancel its tasks then.
    """
    ends = consumer.blueprint.state != bootsteps.RUN  # type: ignore[attr-defined]  # missing in its type stubs
    if ends or consumer.app.conf.worker_cancel_long_running_tasks_on_connection_loss:
        return ()
    return tuple(state.active_requests)
