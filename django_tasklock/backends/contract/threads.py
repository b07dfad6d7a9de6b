"""Threads of our own, in which the verbs of a store run for coroutines.

asgiref's ``sync_to_async`` has one thread for all coroutines, so that a verb that waits for a slow server would hold up
the queries of every other coroutine. A store on Django's connections is bound to that thread; the others are not.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Literal, TypeVar, cast
from weakref import WeakKeyDictionary

from asgiref.sync import sync_to_async

from django_tasklock.db.connections import release_connections
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.types import Grant

T = TypeVar("T")
Where = Literal["threads", "django", "loop"]
"""Where the verbs of a store run for coroutines: in threads of our own, in the thread that has the connections of the
coroutine's queries, or at once, because they never block."""
MOST = 16  # threads: so many connections to Redis at most


class _Call:
    """One verb, on behalf of one coroutine."""

    def __init__(self, store: object, verb: Callable[[], Any], undo: Callable[[], object] | None) -> None:
        self.store = store
        self.verb = verb
        self.undo = undo
        self.since = time.monotonic()
        self.loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[Any] = self.loop.create_future()
        self.cancelled = False

    def run(self, down: WeakKeyDictionary[object, tuple[float, BackendUnavailable]]) -> None:
        """Run the verb, in a thread, and hand its answer to the coroutine."""
        if self.cancelled and self.undo is not None:  # others, a release for example, are due nevertheless
            return
        found = error = None
        try:
            failed = down.get(self.store)
            if failed is not None and failed[0] >= self.since:  # so it is known, and was asked for this one, too
                raise BackendUnavailable(str(failed[1]), down=True)
            try:
                found = self.verb()
            finally:
                release_connections()  # a listener to what the verb tells may have queried, and the thread stays
        except BaseException as caught:
            error = caught
            if isinstance(caught, BackendUnavailable) and caught.down:
                down[self.store] = time.monotonic(), caught
        try:
            # Methods written in C, because a soft time limit may strike a callback in Python, and its coroutine would
            # wait for ever.
            if error is None:
                self.loop.call_soon_threadsafe(self.answer.set_result, found)
            else:
                self.loop.call_soon_threadsafe(self.answer.set_exception, error)
        except RuntimeError:  # the loop was closed meanwhile
            if self.undo is not None and isinstance(found, Grant):
                self.undo()

    def abandon(self) -> None:
        """Note that the coroutine does not wait any more: what it is granted is undone."""
        self.cancelled = True
        if self.undo is not None:
            self.answer.add_done_callback(self._take_back)

    def _take_back(self, answer: asyncio.Future[Any]) -> None:
        if self.undo is not None and answer.exception() is None and isinstance(answer.result(), Grant):
            threads.put(_Call(self.store, self.undo, None))


class Threads:
    """Up to ``MOST`` threads, each started when it is needed. They do not keep the process from ending."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[_Call] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._started = 0
        self._starting = threading.Lock()
        self._down: WeakKeyDictionary[object, tuple[float, BackendUnavailable]] = WeakKeyDictionary()
        """When each store was found down, by a call that was waiting for it: who is in line here need not ask, too."""

    def put(self, call: _Call) -> None:
        """Run a call in the next free thread."""
        self._calls.put(call)
        if not self._idle.acquire(blocking=False):
            with self._starting:
                if self._started < MOST:
                    self._started += 1
                    threading.Thread(target=self._serve, name=f"tasklock-store-{self._started}", daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                call = self._calls.get_nowait()
            except Empty:
                self._idle.release()
                call = self._calls.get()
            call.run(self._down)
            del call  # while it waits for the next one, nothing keeps the answer of this one alive


threads = Threads()


async def run(store: object, where: Where, verb: Callable[[], T], undo: Callable[[], object] | None = None) -> T:
    """Run ``verb`` of ``store`` where it may block, and return its answer.

    If the coroutine is cancelled, the thread runs the verb all the same, and ``undo`` after a grant; a verb with
    ``undo`` that has not begun yet is not run. If the store is found down meanwhile, the error is that of the call
    that found it.
    """
    if where == "loop":
        return verb()
    if where == "django":
        return await _run_with_queries(verb, undo)
    call = _Call(store, verb, undo)
    try:
        threads.put(call)
        return cast("T", await asyncio.shield(call.answer))
    except BaseException:  # a cancellation, or a soft time limit
        call.abandon()
        raise


async def _run_with_queries(verb: Callable[[], T], undo: Callable[[], object] | None) -> T:
    cancelled = threading.Event()

    def ask() -> T:
        answer = verb()
        if undo is not None and cancelled.is_set() and isinstance(answer, Grant):
            undo()
        return answer

    try:
        return await sync_to_async(ask)()
    except BaseException:
        cancelled.set()
        raise


def after_fork() -> None:
    """Begin without threads: those of the parent do not run here."""
    global threads
    threads = Threads()
