"""Waiting in Redis: asleep on a subscription until the release hands the lock over.

A waiter joins a queue inside the acquiring script and listens on a channel of its own.
Whoever releases the lock grants it to the longest waiter and publishes that, in the
same script: two requests and one push per contended acquisition. The number of
listeners that a publish reaches tells a dead waiter from a live one.

A push can be lost with its connection, so a waiter also asks again now and then: its
token is its place, and a lock it was given meanwhile is its own.
"""

from __future__ import annotations

from collections import deque
from functools import cached_property
from typing import TYPE_CHECKING, Any

import redis
from redis.exceptions import RedisError

from django_tasklock.backends.base import Waiter
from django_tasklock.backends.redis.layout import CLAIM, Layout
from django_tasklock.backends.redis.wire import bulk, load, unavailable
from django_tasklock.types import Ask, Busy, Grant

if TYPE_CHECKING:
    from django_tasklock.backends.redis import RedisBackend

__all__ = ["RedisWaiter", "Subscriber", "Subscribers"]

ACQUIRE = load("acquire", 4, 5)
LEAVE = load("release", 4, 2)


class Subscriber:
    """A connection that listens on a channel of its own."""

    def __init__(self, connection: Any, channel: str) -> None:
        self.connection = connection
        self.channel = channel


class Subscribers:
    """Idle subscribers: as many as ever waited at once in this process."""

    def __init__(self, pool: redis.ConnectionPool, layout: Layout) -> None:
        self._pool = pool
        self._layout = layout
        self._idle: deque[Subscriber] = deque()

    def idle(self) -> Subscriber | None:
        """One that is at hand and still connected."""
        while self._idle:
            subscriber = self._idle.pop()
            try:
                while subscriber.connection.can_read(0):
                    subscriber.connection.read_response()  # a push that its waiter no longer waited for
                return subscriber
            except (RedisError, OSError):
                self.discard(subscriber)
        return None

    def new(self) -> Subscriber:
        """One that the server has confirmed: a publish from now on reaches it."""
        connection = None
        try:
            connection = self._pool.get_connection()
            subscriber = Subscriber(connection, self._layout.new_channel())
            connection.send_packed_command((b"*2\r\n$9\r\nSUBSCRIBE\r\n" + bulk(subscriber.channel),))
            connection.read_response()
        except BaseException as error:
            if connection is not None:
                connection.disconnect()
                self._pool.release(connection)
            if isinstance(error, RedisError | OSError):
                raise unavailable(error) from error
            raise
        return subscriber

    def keep(self, subscriber: Subscriber) -> None:
        """Put one back for the next who waits."""
        self._idle.append(subscriber)

    def discard(self, subscriber: Subscriber) -> None:
        """Close one."""
        subscriber.connection.disconnect()
        self._pool.release(subscriber.connection)

    def close(self) -> None:
        """Close those that are idle."""
        while self._idle:
            self.discard(self._idle.pop())


class RedisWaiter(Waiter):
    """One place in the queue of one lock."""

    backend: RedisBackend

    def __init__(self, backend: RedisBackend, ask: Ask) -> None:
        super().__init__(backend, ask)
        self._subscriber: Subscriber | None = None
        self._queued = False

    def acquire(self) -> Grant | Busy:
        if self._subscriber is None:
            self._subscriber = self.backend.subscribers.idle()
            if self._subscriber is None:
                reply = self.backend.acquire(self.ask)  # most locks are free: do not connect twice for those
                if isinstance(reply, Grant):
                    return reply
                self._subscriber = self.backend.subscribers.new()
        self._queued = True
        answer = self.backend.answer(self.ask, self.backend.wire.call(ACQUIRE, self._tail(self._subscriber.channel))[0])
        if isinstance(answer, Grant):
            self._queued = False
        return answer

    def _tail(self, channel: str) -> bytes:
        return self.backend.layout.ask(self.ask) + self.backend.layout.entry(self.ask, channel)

    def wait(self, seconds: float) -> Grant | None:
        assert self._subscriber is not None, "wait() comes after acquire()"
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
        except BaseException:
            self.backend.subscribers.discard(self._subscriber)
            self._subscriber = None
            raise
        return None

    def leave(self) -> None:
        subscriber, self._subscriber = self._subscriber, None
        if subscriber is not None:
            self.backend.subscribers.keep(subscriber)
        if self._queued:
            self._queued = False
            self.backend.wire.call(LEAVE, leaving(self.backend.layout, self.ask, subscriber and subscriber.channel))

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

    def __init__(self, backend: RedisBackend, ask: Ask) -> None:
        self.backend = backend
        self.ask = ask
        self._channel = ""
        self._connection: Any = None
        self._queued = False

    async def acquire(self) -> Grant | Busy:
        """Try; join the queue if the lock is busy."""
        wires, layout = self.backend.aio, self.backend.layout
        if self._connection is None:
            reply = await self.backend.aacquire(self.ask)
            if isinstance(reply, Grant):
                return reply
            self._channel = layout.new_channel()
            self._connection = await wires.subscribe(self._channel)
        self._queued = True
        tail = layout.ask(self.ask) + layout.entry(self.ask, self._channel)
        answer = self.backend.answer(self.ask, (await wires.call(ACQUIRE, tail))[0])
        if isinstance(answer, Grant):
            self._queued = False
        return answer

    async def wait(self, seconds: float) -> Grant | None:
        """Sleep until the lock is handed over, ``seconds`` at the most."""
        try:
            message = await self.backend.aio.listen(self._connection, seconds)
        except BaseException as error:
            connection, self._connection = self._connection, None
            await self.backend.aio.discard(connection)
            if isinstance(error, RedisError | OSError):
                return None
            raise
        fence = handed_over(message, self.ask.token)
        if fence is None:
            return None
        self._queued = False
        return Grant(fence, min(self.ask.ttl, CLAIM))

    async def leave(self) -> None:
        """Give up the place and close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await self.backend.aio.discard(connection)
        if self._queued:
            self._queued = False
            await self.backend.aio.call(LEAVE, leaving(self.backend.layout, self.ask, self._channel))


def handed_over(message: Any, token: str) -> int | None:
    """The fence, if this push says that ``token`` has the lock now."""
    if not (isinstance(message, list) and message[0] == b"message"):
        return None
    whose, _, fence = message[2].decode().partition(" ")
    return int(fence) if whose == token else None


def leaving(layout: Layout, ask: Ask, channel: str | None) -> bytes:
    """Arguments of ``release.lua`` for a waiter: its place, and the lock if it was handed over."""
    return layout.keys(ask.name) + bulk(ask.token) + (layout.entry(ask, channel) if channel else bulk(""))
