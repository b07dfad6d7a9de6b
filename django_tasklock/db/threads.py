"""Functions that run to their end in the thread of a coroutine's queries, even if the coroutine is cancelled."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from asgiref.sync import sync_to_async

logger = logging.getLogger("django_tasklock")
T = TypeVar("T")


async def run_to_end(function: Callable[..., T], *args: Any) -> T:
    """Run ``function`` in a thread and wait for its end, even if the caller is cancelled: a write cannot be cancelled.

    It runs even while ``asyncio.run`` is ending and cancels calls that are still queued. ``CancelledError`` is raised
    afterwards; an exception of ``function`` is logged then.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    once = threading.Lock()
    begun = False
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        nonlocal begun
        with once:
            if begun:  # it was cancelled at the moment when it began, and scheduled again
                return
            begun = True
        try:
            results.append(function(*args))
        except BaseException as error:
            errors.append(error)
        finally:
            loop.call_soon_threadsafe(ended.set_result, None)

    cancelled: asyncio.CancelledError | None = None
    work = asyncio.ensure_future(sync_to_async(run)())
    while not (ended.done() and work.done()):  # a task that is left to the loop's end may be finalized anywhere
        waits: list[asyncio.Future[Any]] = [one for one in (ended, work) if not one.done()]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError as error:
            cancelled = error
        if begun or not work.done():
            continue
        if not work.cancelled():
            work.result()  # it could not be started: raise the cause
        cancelled = cancelled or asyncio.CancelledError()
        work = asyncio.ensure_future(sync_to_async(run)())  # the loop is ending, and has cancelled it in the queue
    if cancelled is not None:
        if errors:
            logger.warning("while being cancelled: %r", errors[0])
        raise cancelled
    if errors:
        raise errors[0]
    return results[0]
