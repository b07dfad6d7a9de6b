"""Waiting in Redis: asleep on a subscription until the release hands the lock over.

A waiter joins a queue inside the acquiring script and listens on a channel of its own.
Whoever releases the lock grants it to the longest waiter and publishes that, in the
same script: two requests and one push per contended acquisition. The number of
listeners that a publish reaches tells a dead waiter from a live one.

A push can be lost with its connection, so a waiter also asks again now and then: its
token is its place, and a lock it was given meanwhile is its own.

A user who may not subscribe waits by asking a few times a second, in no order.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import cached_property
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoPermissionError, RedisError

from django_tasklock.backends.base import Waiter
from django_tasklock.backends.redis.layout import CLAIM, Layout
from django_tasklock.backends.redis.subscribers import Subscriber, tell_deaf
from django_tasklock.backends.redis.wire import bulk
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.types import Ask, Busy, Grant

if TYPE_CHECKING:
    from django_tasklock.backends.redis import RedisBackend
    from django_tasklock.backends.redis.permits import PermitLayout, RedisPermits

__all__ = ["RedisWaiter"]

logger = logging.getLogger("django_tasklock")

AGAIN = 0.1  # seconds between two tries to listen again


class RedisWaiter(Waiter):
    """One place in the queue of one lock, or of one limiter."""

    backend: RedisBackend | RedisPermits

    def __init__(self, backend: RedisBackend | RedisPermits, ask: Ask) -> None:
        super().__init__(backend, ask)
        self._subscriber: Subscriber | None = None
        self._channel = ""  # of the entry in the queue, also when the connection is gone
        self._queued = False
        self._deaf = False

    def acquire(self) -> Grant | Busy:
        if self._subscriber is None:
            self._subscriber = self.backend.subscribers.idle()
            if self._subscriber is None:
                reply = self.backend.acquire(self.ask)  # most locks are free: do not connect twice for those
                if isinstance(reply, Grant) or self._deaf:
                    return reply
                try:
                    self._subscriber = self.backend.subscribers.new()
                except NoPermissionError as error:
                    self._deaf = True
                    tell_deaf(str(error))
                    return reply
        self._channel = self._subscriber.channel
        self._queued = True
        try:
            reply = self.backend.wire.call(self.backend.JOIN, self._tail(self._channel))[0]
        except BackendUnavailable:  # the place goes with its channel, the token is the caller's to give up
            self._close()
            raise
        answer = self.backend.answer(self.ask, reply)
        if isinstance(answer, Grant):
            self._queued = False
        return answer

    def _tail(self, channel: str) -> bytes:
        return self.backend.layout.ask(self.ask) + self.backend.layout.entry(self.ask, channel)

    def wait(self, seconds: float) -> Grant | None:
        if self._subscriber is None:
            return super().wait(seconds)
        connection = self._subscriber.connection
        try:
            while connection.can_read(max(seconds, 0.0005)):
                fence = handed_over(connection.read_response(), self.ask.token)
                if fence is not None:
                    self._queued = False
                    return Grant(fence, min(self.ask.ttl, CLAIM))
                seconds = 0.0  # that was for who waited on this connection before
        except (RedisError, OSError):  # the push may be lost: the next acquire() will tell
            self.backend.subscribers.discard(self._subscriber)
            self._subscriber = None
            self._mend(seconds)
        except BaseException:
            self.backend.subscribers.discard(self._subscriber)
            self._subscriber = None
            raise
        return None

    def _mend(self, seconds: float) -> None:
        """Listen again where the queue says, trying for ``seconds``: a server that is restarted is soon back."""
        ends = time.monotonic() + seconds
        while True:
            try:
                self._subscriber = self.backend.subscribers.new(self._channel)
                return
            except (BackendUnavailable, NoPermissionError):
                if time.monotonic() >= ends:
                    return
            time.sleep(self.pause(AGAIN))

    def leave(self) -> None:
        try:
            if self._queued:
                self.backend.wire.call(self.backend.LEAVE, leaving(self.backend.layout, self.ask, self._channel))
                self._queued = False
        except BackendUnavailable as error:
            tell_left(self.backend.noun, self.ask.name, error)
        finally:
            if self._queued:
                self._close()
            elif self._subscriber is not None:
                self.backend.subscribers.keep(self._subscriber)
                self._subscriber = None

    def _close(self) -> None:
        """Leave without a word: a place whose channel nobody hears is skipped, a claim made for it is short."""
        self._queued = False
        if self._subscriber is not None:
            self.backend.subscribers.discard(self._subscriber)
            self._subscriber = None

    async def aacquire(self) -> Grant | Busy:
        return await self._twin.acquire()

    async def await_(self, seconds: float) -> Grant | None:
        return await self._twin.wait(seconds)

    async def aleave(self) -> None:
        await self._twin.leave()

    @cached_property
    def _twin(self) -> AsyncWaiter:
        return AsyncWaiter(self.backend, self.ask)


class AsyncWaiter:
    """The same for a coroutine, on the connections of its event loop."""

    def __init__(self, backend: RedisBackend | RedisPermits, ask: Ask) -> None:
        self.backend = backend
        self.ask = ask
        self._channel = ""
        self._connection: Any = None
        self._queued = False
        self._deaf = False

    async def acquire(self) -> Grant | Busy:
        """Try; join the queue if the lock is busy."""
        wires, layout = self.backend.aio, self.backend.layout
        if self._connection is None:
            reply = await self.backend.aacquire(self.ask)
            if isinstance(reply, Grant) or self._deaf:
                return reply
            self._channel = layout.new_channel()
            try:
                self._connection = await wires.subscribe(self._channel)
            except NoPermissionError as error:
                self._deaf = True
                tell_deaf(str(error))
                return reply
        self._queued = True
        tail = layout.ask(self.ask) + layout.entry(self.ask, self._channel)
        try:
            reply = (await wires.call(self.backend.JOIN, tail))[0]
        except BackendUnavailable:
            self._queued = False
            raise
        answer = self.backend.answer(self.ask, reply)
        if isinstance(answer, Grant):
            self._queued = False
        return answer

    async def wait(self, seconds: float) -> Grant | None:
        """Sleep until the lock is handed over, ``seconds`` at the most."""
        if self._connection is None:
            await asyncio.sleep(Waiter.pause(seconds))
            return None
        try:
            message = await self.backend.aio.listen(self._connection, seconds)
        except BaseException as error:
            connection, self._connection = self._connection, None
            await self.backend.aio.discard(connection)
            if isinstance(error, RedisError | OSError):
                await self._mend(seconds)
                return None
            raise
        fence = handed_over(message, self.ask.token)
        if fence is None:
            return None
        self._queued = False
        return Grant(fence, min(self.ask.ttl, CLAIM))

    async def _mend(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while True:
            try:
                self._connection = await self.backend.aio.subscribe(self._channel)
                return
            except (BackendUnavailable, NoPermissionError):
                if time.monotonic() >= ends:
                    return
            await asyncio.sleep(Waiter.pause(AGAIN))

    async def leave(self) -> None:
        """Give up the place and close the connection."""
        connection, self._connection = self._connection, None
        try:
            if self._queued:
                self._queued = False
                await self.backend.aio.call(self.backend.LEAVE, leaving(self.backend.layout, self.ask, self._channel))
        except BackendUnavailable as error:
            tell_left(self.backend.noun, self.ask.name, error)
        finally:
            if connection is not None:
                await self.backend.aio.close(connection)


def tell_left(noun: str, name: str, error: BackendUnavailable) -> None:
    """Say that a place was given up without the store's knowing."""
    logger.warning("%s %r: a waiter left the queue and could not say so: %s", noun, name, error)


def handed_over(message: Any, token: str) -> int | None:
    """The fence, if this push says that ``token`` has the lock now."""
    if not (isinstance(message, list) and message[0] == b"message"):
        return None
    whose, _, fence = message[2].decode().partition(" ")
    return int(fence) if whose == token else None


def leaving(layout: Layout | PermitLayout, ask: Ask, channel: str) -> bytes:
    """Arguments of ``release.lua`` for a waiter: its place, and the lock if it was handed over."""
    return layout.keys(ask.name) + bulk(ask.token) + layout.entry(ask, channel)
