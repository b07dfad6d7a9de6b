"""Waiting in Redis: asleep on a subscription until the release hands the lock over.

A waiter joins a queue inside the acquiring script and listens on a channel of its own.
Whoever releases the lock grants it to the longest waiter and publishes that, in the
same script: two requests and one push per contended acquisition. The number of
listeners that a publish reaches tells a dead waiter from a live one.

A push can be lost with its connection, so a waiter also asks again now and then: its
token is its place, and a lock it was given meanwhile is its own. It joins before it
listens, and says so: until it does the lock is handed to it unheard. Whoever has not
asked for the length of a claim is passed over, as are all that a stopped process has,
and takes its old rank again when it asks.

A user who may not subscribe waits by asking a few times a second, in no order.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from redis.exceptions import NoPermissionError, RedisError

from django_tasklock.backends.contract.leases import LeaseStore, Waiter
from django_tasklock.backends.redis.keys import CLAIM
from django_tasklock.backends.redis.script import bulk
from django_tasklock.backends.redis.subscribers import Subscriber, tell_deaf
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.types import AcquireRequest, Busy, Grant

if TYPE_CHECKING:
    from django_tasklock.backends.redis.connections import Asking, AsyncAsking, Listening
    from django_tasklock.backends.redis.script import Script
    from django_tasklock.backends.redis.shared import Ear

logger = logging.getLogger("django_tasklock")

AGAIN = 0.1  # seconds between two tries to listen again


class QueueLayout(Protocol):
    """Keys and packed arguments of what can be waited for."""

    def keys(self, name: str) -> bytes:
        """Return the keys of every script that grants."""

    def joining(self, request: AcquireRequest, channel: str, rank: int | None, listens: bool) -> bytes:
        """Return keys and arguments of ``JOIN`` for somebody who waits, or looks from its place in the queue."""

    def entry(self, request: AcquireRequest, channel: str) -> bytes:
        """Return what a release must know of a waiter."""

    def new_channel(self) -> str:
        """Return where one waiter listens."""


class QueueStore(LeaseStore):
    """Locks, or permits, that are handed over in order of arrival."""

    wakes = True
    JOIN: ClassVar[Script]
    LEAVE: ClassVar[Script]
    layout: QueueLayout

    @property
    @abstractmethod
    def wire(self) -> Asking:
        """The connections of this process's threads, made on first use."""

    @property
    @abstractmethod
    def subscribers(self) -> Listening:
        """The connections on which this process's threads wait."""

    @property
    @abstractmethod
    def aio(self) -> AsyncAsking:
        """The connections of this process's event loops."""

    @abstractmethod
    def answer(self, request: AcquireRequest, reply: Any) -> Grant | Busy:
        """Return what ``JOIN`` said."""

    def waiter(self, request: AcquireRequest) -> Waiter:
        return RedisWaiter(self, request)


class RedisWaiter(Waiter):
    """One place in the queue of one lock, or of one limiter."""

    backend: QueueStore

    def __init__(self, backend: QueueStore, request: AcquireRequest) -> None:
        super().__init__(backend, request)
        self.subscriber: Subscriber | None = None
        self.channel = ""  # of the entry in the queue, also when the connection is gone
        self._rank: int | None = None  # there, to be taken up again by who was thought dead
        self.queued = False
        self._deaf = False
        self._silent = False  # there was no answer to the last question
        self._busy: Busy | None = None  # what its first half was answered

    def acquire(self) -> Grant | Busy:
        self._silent, self._busy = False, None
        try:
            return self._acquire()
        except BackendUnavailable as error:
            self._silent, error.busy = True, self._busy
            raise

    def _acquire(self) -> Grant | Busy:
        if self._deaf:
            return self.backend.acquire(self.request)
        if not self.channel:
            self.subscriber = self.backend.subscribers.idle()
            self.channel = self.subscriber.channel if self.subscriber else self.backend.layout.new_channel()
        if self.subscriber is not None and not self.backend.subscribers.hears(self.subscriber):
            self.backend.subscribers.discard(self.subscriber)
            self.subscriber = None
        if self.subscriber is None:
            # One trip for the lock, or the place: connecting takes several, and who comes meanwhile comes after us.
            answer = self._join(listens=False)
            if isinstance(answer, Grant):
                return answer
            try:
                self.subscriber = self.backend.subscribers.new(self.channel)
            except NoPermissionError as error:
                self._deaf = True
                self._give_up()
                tell_deaf(str(error))
                return answer
            except BackendUnavailable as error:
                tell_unheard(self.backend.noun, self.request.name, error)
                return answer
        return self._join(listens=True)

    def _join(self, listens: bool) -> Grant | Busy:
        self.queued = True
        tail = self.backend.layout.joining(self.request, self.channel, self._rank, listens)
        reply = self.backend.wire.grant(self.backend.JOIN, tail)[0]
        answer = self.backend.answer(self.request, reply)
        if isinstance(answer, Grant):
            self.queued = False
        else:
            self._busy, self._rank = answer, reply[3]
        return answer

    def _give_up(self) -> None:
        self.backend.wire.call(self.backend.LEAVE, leaving(self.backend.layout, self.request, self.channel))
        self.queued = False

    def wait(self, seconds: float) -> Grant | None:
        if self.subscriber is None:
            return super().wait(seconds)
        connection = self.subscriber.connection
        try:
            while connection.can_read(max(seconds, 0.0005)):
                fence = handed_over(connection.read_response(), self.request.token)
                if fence is not None:
                    if self.backend.wire.acknowledged is not None:
                        return None  # asked for once more, it is acknowledged
                    self.queued = False
                    return Grant(fence, self.request.claim(CLAIM))
                seconds = 0.0  # that was for who waited on this connection before
        except (RedisError, OSError):  # the push may be lost: the next acquire() will tell
            self.backend.subscribers.discard(self.subscriber)
            self.subscriber = None
            self._mend(seconds)
        except BaseException:
            self.backend.subscribers.discard(self.subscriber)
            self.subscriber = None
            raise
        return None

    def _mend(self, seconds: float) -> None:
        """Listen again where the queue says, trying for ``seconds``: a server that is restarted is soon back."""
        ends = time.monotonic() + seconds
        while True:
            try:
                self.subscriber = self.backend.subscribers.new(self.channel)
                return
            except (BackendUnavailable, NoPermissionError):
                if time.monotonic() >= ends:
                    return
            time.sleep(self.pause(AGAIN))

    def leave(self) -> None:
        try:
            # After a silence the place goes with its channel: the token is the caller's to give up, not to wait for.
            if self.queued and not self._silent:
                self._give_up()
        except BackendUnavailable as error:
            tell_left(self.backend.noun, self.request.name, error)
        finally:
            if self.queued:
                self._close()
            elif self.subscriber is not None:
                self.backend.subscribers.keep(self.subscriber)
                self.subscriber = None

    def _close(self) -> None:
        """Leave without a word: a place whose channel nobody hears is skipped, a claim made for it is short."""
        self.queued = False
        if self.subscriber is not None:
            self.backend.subscribers.discard(self.subscriber)
            self.subscriber = None

    async def aacquire(self) -> Grant | Busy:
        return await self._twin.acquire()

    async def await_(self, seconds: float) -> Grant | None:
        return await self._twin.wait(seconds)

    async def aleave(self) -> None:
        await self._twin.leave()

    @cached_property
    def _twin(self) -> AsyncWaiter:
        return AsyncWaiter(self.backend, self.request)


class AsyncWaiter:
    """The same for a coroutine, on the connections of its event loop."""

    def __init__(self, backend: QueueStore, request: AcquireRequest) -> None:
        self.backend = backend
        self.request = request
        self.channel = ""
        self._rank: int | None = None
        self._ear: Ear | None = None
        self.queued = False
        self._deaf = False
        self._silent = False
        self._busy: Busy | None = None

    async def acquire(self) -> Grant | Busy:
        """Try; join the queue if the lock is busy."""
        self._silent, self._busy = False, None
        try:
            return await self._acquire()
        except BackendUnavailable as error:
            self._silent, error.busy = True, self._busy
            raise

    async def _acquire(self) -> Grant | Busy:
        if self._deaf:
            return await self.backend.aacquire(self.request)
        if not self.channel:
            self._ear = self.backend.aio.idle_ear()
            self.channel = self._ear.channel if self._ear else self.backend.layout.new_channel()
        if self._ear is not None and not self.backend.aio.hears(self._ear):
            self._ear.connection.unsubscribe(self._ear)
            self._ear = None
        if self._ear is None:
            answer = await self._join(listens=False)
            if isinstance(answer, Grant):
                return answer
            try:
                self._ear = await self.backend.aio.subscribe(self.channel)
            except NoPermissionError as error:
                self._deaf = True
                await self._give_up()
                tell_deaf(str(error))
                return answer
            except BackendUnavailable as error:
                tell_unheard(self.backend.noun, self.request.name, error)
                return answer
        return await self._join(listens=True)

    async def _join(self, listens: bool) -> Grant | Busy:
        self.queued = True
        tail = self.backend.layout.joining(self.request, self.channel, self._rank, listens)
        reply = (await self.backend.aio.grant(self.backend.JOIN, tail))[0]
        answer = self.backend.answer(self.request, reply)
        if isinstance(answer, Grant):
            self.queued = False
        else:
            self._busy, self._rank = answer, reply[3]
        return answer

    async def _give_up(self) -> None:
        await self.backend.aio.call(self.backend.LEAVE, leaving(self.backend.layout, self.request, self.channel))
        self.queued = False

    async def wait(self, seconds: float) -> Grant | None:
        """Sleep until the lock is handed over, ``seconds`` at the most."""
        if self._ear is None:
            await asyncio.sleep(Waiter.pause(seconds))
            return None
        try:
            message = await self._ear.listen(seconds)
        except RedisError:
            self._ear = None
            await self._mend(seconds)
            return None
        fence = handed_over(message, self.request.token)
        if fence is None or self.backend.aio.acknowledged is not None:  # asked for once more, it is acknowledged
            return None
        self.queued = False
        return Grant(fence, self.request.claim(CLAIM))

    async def _mend(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while True:
            try:
                self._ear = await self.backend.aio.subscribe(self.channel)
                return
            except (BackendUnavailable, NoPermissionError):
                if time.monotonic() >= ends:
                    return
            await asyncio.sleep(Waiter.pause(AGAIN))

    async def leave(self) -> None:
        """Give up the place, and listen no more."""
        ear, self._ear = self._ear, None
        try:
            if self.queued and not self._silent:
                await self._give_up()
        except BackendUnavailable as error:
            tell_left(self.backend.noun, self.request.name, error)
        finally:
            if ear is None:
                pass
            elif self.queued:  # nobody hears its channel then: the place is skipped
                ear.connection.unsubscribe(ear)
            else:
                self.backend.aio.keep(ear)


def tell_left(noun: str, name: str, error: BackendUnavailable) -> None:
    """Log that a waiter has left, which the store could not be told."""
    logger.warning("%s %r: a waiter left the queue and could not say so: %s", noun, name, error)


def tell_unheard(noun: str, name: str, error: BackendUnavailable) -> None:
    """Say that somebody who waits has no connection to listen on: busy is busy, so it looks until it has one."""
    logger.warning("%s %r: a waiter looks a few times a second, it cannot listen: %s", noun, name, error)


def handed_over(message: Any, token: str) -> int | None:
    """Return the fence, if this push says that ``token`` has the lock now."""
    if not (isinstance(message, list) and message[0] == b"message"):
        return None
    whose, _, fence = message[2].decode().partition(" ")
    return int(fence) if whose == token else None


def leaving(layout: QueueLayout, request: AcquireRequest, channel: str) -> bytes:
    """Return arguments of ``release.lua`` for a waiter: its place, and the lock if it was handed over."""
    return layout.keys(request.name) + bulk(request.token) + layout.entry(request, channel)
