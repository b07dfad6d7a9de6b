"""Requests that may hang: answered in bounded time, by one thread at a time, once per second at most."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from django_tasklock.db.connections import release_connections

logger = logging.getLogger("django_tasklock")
T = TypeVar("T")

TIMEOUT = 2.0
"""Seconds that a caller waits for an answer. The store's own attempts take 1.8 s at most."""
MAX_AGE = 1.0
"""Seconds for which an answer is reused, so that clients of the public URL cannot cause more requests."""


class Probe(Generic[T]):
    """A repeatable request. Its thread keeps no database connection, and while it hangs no second one is started."""

    def __init__(self, call: Callable[[], T], name: str) -> None:
        self._call = call
        self._name = name
        self.forget()

    def forget(self) -> None:
        """Discard the answer and any request in progress."""
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._future: Future[T] | None = None
        self._expires_at = 0.0

    def start(self) -> Future[T]:
        """Start a request, unless one is in progress or its answer is fresh; return its future."""
        if self._process != os.getpid():
            self.forget()  # the thread and the lock are of the parent process
        with self._lock:
            future = self._future
            if future is None or (future.done() and time.monotonic() >= self._expires_at):
                future = self._future = Future()
                threading.Thread(target=self._run, args=(future,), name=f"tasklock-{self._name}", daemon=True).start()
            return future

    def result(self, timeout: float = TIMEOUT) -> T | None:
        """Return the answer; ``None`` if there is none in time, or the request failed."""
        try:
            return self.start().result(max(0.0, timeout))
        except TimeoutError:
            return None
        except Exception:
            return None  # logged by the thread

    def _run(self, future: Future[T]) -> None:
        try:
            answer = self._call()
        except BaseException as error:
            logger.warning("health: %s cannot be asked: %r", self._name, error)
            release_connections()
            self._expires_at = time.monotonic() + MAX_AGE
            future.set_exception(error)
        else:
            release_connections()
            self._expires_at = time.monotonic() + MAX_AGE
            future.set_result(answer)
