"""A worker in the test's own process: it runs one message at a time, when the test says so, as a worker's child would.

What Celery does between a message and its body is Celery's own: ``Request.execute``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery.worker.request import Request
from kombu.serialization import prepare_accept_content
from kombu.simple import SimpleQueue

from tests.support.celery_site.site import Site

__all__ = ["Courier", "Killed"]


class Killed(BaseException):
    """Stands for ``kill -9``: nobody catches it."""


class Courier:
    """Takes messages off the site's queue."""

    def __init__(self, site: Site) -> None:
        self.site = site

    @contextmanager
    def _queue(self, short: str) -> Iterator[SimpleQueue]:
        with self.site.app.connection_for_read() as connection:
            queue = connection.SimpleQueue(self.site.queue(short))
            queue.consumer.accept = prepare_accept_content(self.site.app.conf.accept_content)
            try:
                yield queue
            finally:
                queue.close()

    def take(self, queue: str = "", redelivered: bool = False) -> Request:
        """The next message, which must be there; the broker forgets it."""
        with self._queue(queue) as open_queue:
            message = open_queue.get(timeout=5)
            message.ack()
        if redelivered:
            message.delivery_info["redelivered"] = True
        return Request(message, app=self.site.app, hostname="courier", decoded=False)

    def run(self, queue: str = "", redelivered: bool = False) -> Request:
        """Run the next message."""
        request = self.take(queue, redelivered)
        request.execute()
        return request

    def run_all(self) -> int:
        """Run messages until there are none; how many."""
        number = 0
        while self.site.waiting():
            self.run()
            number += 1
        return number

    def purge(self) -> int:
        """Empty the queue."""
        with self._queue("") as queue:
            return int(queue.clear() or 0)

    def message(self, queue: str = "") -> Any:
        """(headers, properties) of the next message, which is taken away."""
        request = self.take(queue)
        return request.message.headers, request.message.properties
