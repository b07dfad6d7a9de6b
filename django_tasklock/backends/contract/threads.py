"""Threads of our own, in which the verbs of a store run for coroutines.

asgiref's ``sync_to_async`` has one thread for all coroutines, so that a verb that waits for a slow server would hold up
the queries of every other coroutine. A store on Django's connections is bound to that thread; the others are not.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
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
        """Cancelled with the coroutine that waits for it."""
        self._telling = threading.Lock()

    def run(self) -> None:
        """Run the verb, in a thread, and hand its answer to the coroutine."""
        if self.answer.cancelled() and self.undo is not None:  # others, a release for example, are due nevertheless
            return
        found = error = None
        try:
            failed = threads.down.get(self.store)
            if failed is not None and failed[0] >= self.since:  # so it is known, and was asked for this one, too
                raise BackendUnavailable(str(failed[1]), down=True)
            found = self.verb()
        except BaseException as caught:
            error = caught
            if isinstance(caught, BackendUnavailable) and caught.down:
                threads.down[self.store] = time.monotonic(), caught
        with self._telling:  # a loop that ends forgets what it is told, and after a cancellation it may end at any time
            told = not self.answer.cancelled()
            if told:
                try:
                    self.loop.call_soon_threadsafe(self._hand_over, found, error)
                except RuntimeError:  # it was closed meanwhile
                    told = False
        if not told:
            self._take_back(found)

    def _hand_over(self, found: Any, error: BaseException | None) -> None:
        """Wake the coroutine. In its loop, because only there is it certain whether it still waits."""
        if self.answer.done():
            self._take_back(found)
        elif error is None:
            self.answer.set_result(found)
        else:
            self.answer.set_exception(error)

    def abandon(self) -> None:
        """Note that the coroutine does not wait any more: what it is granted is undone."""
        with self._telling:
            self.answer.cancel()
        if not self.answer.cancelled() and self.answer.exception() is None:  # it was awake already
            self._take_back(self.answer.result())

    def _take_back(self, found: Any) -> None:
        if self.undo is not None and isinstance(found, Grant):
            threads.put(partial(_undo, self.undo))


def _undo(undo: Callable[[], object]) -> None:
    with suppress(BackendUnavailable):  # the caller has left a release to the heartbeat
        undo()


class Threads:
    """Up to ``MOST`` threads, each started when it is needed. They do not keep the process from ending."""

    def __init__(self) -> None:
        self._line: deque[Callable[[], object]] = deque()
        """What waits for a thread; the next one that is free takes it."""
        self._idle: list[SimpleQueue[Callable[[], object]]] = []
        """Where each idle thread waits for work. The last one that became idle is the first to get some, so that
        coroutines that ask one after another are served by one or two threads, whatever a burst has started."""
        self._started = 0
        self._turn = threading.Lock()
        self.down: WeakKeyDictionary[object, tuple[float, BackendUnavailable]] = WeakKeyDictionary()
        """When each store was found down, by a call that was waiting for it: who is in line here need not ask, too."""

    def put(self, work: Callable[[], object]) -> None:
        """Do this in the next free thread. It must not raise."""
        with self._turn:
            if self._idle:
                self._idle.pop().put(work)
                return
            self._line.append(work)
            if self._started < MOST:
                name = f"tasklock-store-{self._started + 1}"
                threading.Thread(target=self._serve, name=name, daemon=True).start()
                self._started += 1

    def _serve(self) -> None:
        given: SimpleQueue[Callable[[], object]] = SimpleQueue()
        while True:
            with self._turn:
                work = self._line.popleft() if self._line else None
                if work is None:
                    self._idle.append(given)
            if work is None:
                release_connections()  # a listener to what a verb tells may have queried, and the thread stays
                work = given.get()
            work()
            del work  # while it waits for the next one, nothing keeps the answer of this one alive


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
        threads.put(call.run)
        return cast("T", await call.answer)
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
