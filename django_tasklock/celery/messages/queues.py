"""How many messages there are for each queue, wherever they are: what an autoscaler of workers has to know.

A queue's list has only those that no worker has fetched. A message that a worker has, or had when it was killed, is in
the hash of unacknowledged ones, and one that waits for its lock is in the table of parked messages.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from celery.app import app_or_default

from django_tasklock.celery.broker import is_redis, redelivery_timeout
from django_tasklock.celery.messages.index import Index, temporary_index
from django_tasklock.celery.queue import rows
from django_tasklock.celery.queue.envelope import UnusableMessage, read
from django_tasklock.celery.queue.rows import PARKED
from django_tasklock.celery.task_modules import import_task_modules

MAX_PARKED = 1000
"""Parked messages that are read for their queues; more are estimated."""


def messages_by_queue() -> dict[str, int] | None:
    """Return the messages of each queue: those that wait, that workers have fetched, and that are parked.

    ``None`` if the broker is not Redis. Above ten thousand fetched ones, and a thousand parked ones, it is an estimate.
    May raise any error.
    """
    app = app_or_default()
    if not is_redis(app):
        return None
    known = _known(app)
    with temporary_index(app, redelivery_timeout(app)) as index:
        index.declare_exchanges(app.amqp.queues.values())
        number, fetched = index.sample_unacknowledged()
        found = _scaled(Counter(queue for one in fetched for queue in one.queues), len(fetched), number)
        found += _parked(app, index)
        return {queue: found[queue] + index.waiting_in(queue) for queue in sorted({*known, *found})}


def _parked(app: Any, index: Index) -> Counter[str]:
    parked = rows.list_rows(None, MAX_PARKED, 0, PARKED)
    found = Counter(queue for row in parked for queue in _queues_of(row.message, app, index))
    return _scaled(found, len(parked), len(parked) if len(parked) < MAX_PARKED else rows.count(None))


def _queues_of(message: str, app: Any, index: Index) -> tuple[str, ...]:
    """Return the queues that a parked message is promoted to; the default one if it cannot be read."""
    try:
        _, signature = read(message, app)
    except UnusableMessage:
        return (app.conf.task_default_queue,)
    options = signature.options
    if options.get("routing_key"):
        return index.queues_of(options.get("exchange") or "", options["routing_key"])
    return (_queue_of(app.tasks.get(signature.task), app, options.get("queue")),)


def _known(app: Any) -> set[str]:
    """Return the queues of the app's settings and tasks."""
    import_task_modules()
    return {*app.amqp.queues, *(_queue_of(task, app) for task in list(app.tasks.values()))}


def _queue_of(task: Any, app: Any, queue: Any = None) -> str:
    """Return the queue that a task's messages are routed to, as far as that does not depend on their arguments."""
    options = {} if task is None else dict(task._get_exec_options())
    if queue is not None:
        options["queue"] = queue
    try:
        found = app.amqp.router.route(options, getattr(task, "name", ""), task_type=task).get("queue")
    except Exception:  # a project's own router, that needs the arguments
        found = None
    return str(getattr(found, "name", None) or app.conf.task_default_queue)


def _scaled(sample: Counter[str], size: int, number: int) -> Counter[str]:
    """Return the counts of ``number`` messages, by those of a sample of ``size``."""
    return sample if size >= number else Counter({queue: round(one * number / size) for queue, one in sample.items()})
