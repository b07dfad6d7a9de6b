"""Cancelling the reservations of cancelled coroutines, in a thread that runs while there is work."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from django.db import connections

from django_tasklock.backends.contract.rates import Booked
from django_tasklock.logs import log
from django_tasklock.process import check_process
from django_tasklock.rates.stored import StoredLimit

T = TypeVar("T")


class BackgroundWork:
    """The background work of one process."""

    def __init__(self) -> None:
        self._work: deque[Callable[[], object]] = deque()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def submit(self, work: Callable[[], object]) -> None:
        """Run ``work``, which does not raise, in the background."""
        check_process()
        self._work.append(work)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tasklock-returns")
                self._thread.start()

    def wait(self, seconds: float = 10.0) -> bool:
        """Wait until all work is done. Return False if that takes more than ``seconds``."""
        thread = self._thread
        if thread is not None:
            thread.join(seconds)
        return not self._work

    def _run(self) -> None:
        while True:
            while self._work:
                try:
                    self._work.popleft()()
                except BaseException:  # the thread must go on: other reservations are still to be cancelled
                    log(logging.ERROR, "a reservation at a rate limit was not given back", trace=True)
            connections.close_all()  # those of this thread
            with self._lock:
                if not self._work:
                    self._thread = None
                    return


background_work = BackgroundWork()
"""The background work of this process."""


async def shield_booking(stored: StoredLimit, cost: int, request: Awaitable[T]) -> T:
    """Await a request that may book. If it is cancelled, let the request finish, and cancel what it has booked."""
    pending = asyncio.ensure_future(request)

    def give_back(done: asyncio.Future[T]) -> None:
        if done.cancelled() or done.exception() is not None:
            return
        booked = done.result()
        if isinstance(booked, Booked):
            background_work.submit(lambda: stored.cancel(cost, booked.slot, booked.edition))

    try:
        return await asyncio.shield(pending)
    except asyncio.CancelledError:
        pending.add_done_callback(give_back)
        raise


def after_fork() -> None:
    """Begin without work: the parent's reservations are the parent's to cancel."""
    background_work.__init__()  # type: ignore[misc]
