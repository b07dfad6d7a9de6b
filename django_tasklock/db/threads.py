"""Running something in the thread of a coroutine's queries, to its end."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from asgiref.sync import sync_to_async

logger = logging.getLogger("django_tasklock")
T = TypeVar("T")


async def to_the_end(function: Callable[..., T], *args: Any) -> T:
    """Run ``function`` in a thread and wait for its end, however often one is cancelled: a write cannot be called back.

    It runs even where ``asyncio.run`` is ending and cancels what was only queued. A cancelled caller learns of it
    afterwards; what ``function`` raised is logged then.
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
            if begun:  # it was cancelled in the very moment in which it began, and sent again
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
    while not (ended.done() and work.done()):  # a task that is left to a loop's end is finalized who knows where
        waits: list[asyncio.Future[Any]] = [one for one in (ended, work) if not one.done()]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError as error:
            cancelled = error
        if begun or not work.done():
            continue
        if not work.cancelled():
            work.result()  # it could not be begun: this says why
        cancelled = cancelled or asyncio.CancelledError()
        work = asyncio.ensure_future(sync_to_async(run)())  # the loop is ending: it was cancelled in its queue
    if cancelled is not None:
        if errors:
            logger.warning("while being cancelled: %r", errors[0])
        raise cancelled
    if errors:
        raise errors[0]
    return results[0]
