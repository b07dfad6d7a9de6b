"""The brokers of a site: a Redis of its own, or a RabbitMQ that is shared with other runs.

Tests marked ``broker`` run on ``TASKLOCK_TEST_BROKER`` where that is set; results stay in Redis.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from celery import Celery
from kombu.exceptions import ChannelError

from tests.support.environment import BROKER

__all__ = ["clean", "named", "waiting"]


def named() -> str | None:
    """The RabbitMQ of this test run, if there is one."""
    url = os.environ.get(BROKER)
    assert not url or url.startswith(("amqp://", "amqps://", "pyamqp://")), f"{BROKER} is no amqp:// address: {url!r}"
    return url or None


def waiting(app: Celery, queue: str) -> int:
    """How many messages of a queue no worker has been given yet."""
    with app.connection_for_read() as connection, connection.channel() as channel:
        try:
            return int(channel.queue_declare(queue, passive=True).message_count)
        except ChannelError:
            return 0  # there is no such queue yet


def clean(app: Celery, queues: Iterable[str], nodes: Iterable[str]) -> None:
    """Remove from the broker what a site, whose workers have ended, made in it."""
    name = app.conf.task_default_queue
    exchanges = [*queues, f"{name}.pidbox", f"reply.{name}.pidbox", f"{name}.events"]
    with app.connection_for_write() as connection:
        for queue in [*queues, *(f"{node}.{name}.pidbox" for node in nodes)]:
            with connection.channel() as channel, contextlib.suppress(ChannelError):
                channel.queue_delete(queue)
        for exchange in exchanges:
            with connection.channel() as channel, contextlib.suppress(ChannelError):
                channel.exchange_delete(exchange)
