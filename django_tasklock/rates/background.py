"""Gives places back where nobody can wait for it, for cancelled coroutines: in a thread, while there is work."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from django.db import connections

from django_tasklock.logs import log


class Returns:
    """Those of one process."""

    def __init__(self) -> None:
        self._work: deque[Callable[[], object]] = deque()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def give(self, work: Callable[[], object]) -> None:
        """Do ``work``, which does not raise, soon."""
        self._work.append(work)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tasklock-returns")
                self._thread.start()

    def wait(self, seconds: float = 10.0) -> bool:
        """Wait until all is done; False if it is not, in time."""
        thread = self._thread
        if thread is not None:
            thread.join(seconds)
        return not self._work

    def _run(self) -> None:
        while True:
            while self._work:
                try:
                    self._work.popleft()()
                except BaseException:  # the thread must outlive it: others' places wait behind this one
                    log(logging.ERROR, "a place at a rate limit was not given back", trace=True)
            connections.close_all()  # those of this thread
            with self._lock:
                if not self._work:
                    self._thread = None
                    return


returns = Returns()
"""The one of this process."""


def after_fork() -> None:
    """Begin without work: the parent gives back what is the parent's."""
    returns.__init__()  # type: ignore[misc]
