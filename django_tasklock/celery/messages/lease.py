"""Every worker of a project with this app renews the leases of its messages: the step that Celery's worker starts."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from celery import bootsteps
from celery.worker import state

from django_tasklock.celery.broker import message_lease
from django_tasklock.celery.messages.renewal import Renewer
from django_tasklock.celery.messages.unacked import fetched_by


class MessageLease(bootsteps.StartStopStep):
    """Follows the worker's connection to the broker; a renewer outlives each of them, and a warm shutdown."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._renewer: Renewer | None = None

    def include_if(self, consumer: Any) -> bool:
        """Tell whether this worker's messages have leases."""
        return message_lease(consumer.app) is not None

    def start(self, consumer: Any) -> None:
        """Begin, or go on: the worker is connected, for the first time or again."""
        if self._renewer is None:
            lease = message_lease(consumer.app)
            assert lease is not None
            self._renewer = Renewer(consumer.app, consumer.hostname, lease)
        connection = consumer.connection
        self._renewer.carried.follow(consumer.task_consumer.channel.qos, partial(_running_in, consumer))
        self._renewer.connected(connection, partial(fetched_by, connection))

    def stop(self, consumer: Any) -> None:
        """Do nothing: the worker takes no more messages; it may still have some."""

    def shutdown(self, consumer: Any) -> None:
        """End: the worker has ended its tasks."""
        if self._renewer is not None:
            self._renewer.stop()


def _running_in(consumer: Any) -> Iterable[Any]:
    """Return the requests that go on although the connection is lost: none of a worker that ends, or ends them."""
    ends = consumer.blueprint.state != bootsteps.RUN  # type: ignore[attr-defined]  # its types do not know it
    if ends or consumer.app.conf.worker_cancel_long_running_tasks_on_connection_loss:
        return ()
    return tuple(state.active_requests)
