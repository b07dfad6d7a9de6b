"""One connection that all coroutines of an event loop share.

redis-py opens it; from then on this module receives the data of its transport and parses the replies. Requests are
written as they come, and replies arrive in the same order: a burst of a thousand coroutines needs one connection, and
if one of them is cancelled, its reply is read and dropped. Waiters share such a connection too, each with a channel of
its own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import redis
import redis.asyncio
from redis.exceptions import RedisError, ResponseError

from django_tasklock.backends.contract.refusals import FULL
from django_tasklock.backends.redis.client import is_full, lost_in_handshake
from django_tasklock.backends.redis.errors import MISTAKES, NotConnected
from django_tasklock.backends.redis.location import TIMEOUT, pools
from django_tasklock.backends.redis.reader import reader
from django_tasklock.backends.redis.script import bulk

GRACE = 0.05
"""Seconds after a deadline until a second check: the loop may have been busy while the reply was ready to be read."""


class Subscription:
    """The subscription to one channel, used by one waiter at a time."""

    def __init__(self, connection: SharedConnection, channel: str) -> None:
        self.connection = connection
        self.channel = channel
        self.lost: Exception | None = None
        """The error with which the connection was lost; ``None``: it is open."""
        self._messages: deque[Any] = deque()
        self._waiting: asyncio.Future[None] | None = None

    def deliver(self, message: Any = None) -> None:
        """Deliver a message and wake the waiter; without a message if the connection is lost."""
        if message is not None:
            self._messages.append(message)
        if self._waiting is not None:
            _wake(self._waiting)

    async def receive(self, seconds: float) -> Any:
        """Return the next message, or ``None`` if there is none within ``seconds``.

        Raises the error with which the connection was lost.
        """
        if not self._messages and self.lost is None:
            loop = asyncio.get_running_loop()
            self._waiting = loop.create_future()
            ends = loop.call_later(max(seconds, 0.0005), _wake, self._waiting)
            try:
                await self._waiting
            finally:
                self._waiting = None
                ends.cancel()
        if self._messages:
            return self._messages.popleft()
        if self.lost is not None:
            raise self.lost
        return None

    def clear(self) -> None:
        """Drop the messages that were not read."""
        self._messages.clear()


def _wake(listening: asyncio.Future[None]) -> None:
    if not listening.done():
        listening.set_result(None)


class SharedConnection(asyncio.Protocol):
    """A connection with any number of requests in flight. ``connection``: redis-py's, connected, for exclusive use."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._pending: deque[asyncio.Future[Any]] = deque()
        self._subscriptions: dict[bytes, Subscription] = {}
        self._last_read = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.over = False
        """Whether either side has closed it, as far as the loop has noticed."""
        self._finishing = False
        self._partial = False
        """Whether the parser may hold a part of a reply."""
        parser = reader()
        self._feed, self._gets = parser.feed, parser.gets
        self._transport: asyncio.Transport = connection._writer.transport
        self._stream_protocol = self._transport.get_protocol()  # redis-py's, which must learn when it ends
        self._transport.set_protocol(self)
        if connection._reader.at_eof() or self._transport.is_closing():
            self.eof_received()

    def ask(self, packed: bytes) -> asyncio.Future[Any]:
        """Send one request; return a future of its reply. If that is cancelled, the reply is read and dropped."""
        if self.over:
            raise redis.ConnectionError("the connection was lost")
        reply = self._loop.create_future()
        if not self._pending:
            self._last_read = self._loop.time()
        self._pending.append(reply)
        if self._timer is None:
            self._timer = self._loop.call_at(self._last_read + TIMEOUT, self._check_silence, False)
        self._transport.write(packed)
        return reply

    async def subscribe(self, channel: str) -> Subscription:
        """Subscribe to ``channel``, confirmed by the server."""
        subscription = self._subscriptions[channel.encode()] = Subscription(self, channel)
        try:
            await self.ask(b"*2\r\n$9\r\nSUBSCRIBE\r\n" + bulk(channel))
        except BaseException:
            self.unsubscribe(subscription)
            raise
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Unsubscribe, without waiting for the server's confirmation."""
        if self._subscriptions.pop(subscription.channel.encode(), None) is not None and not self.over:
            self.ask(b"*2\r\n$11\r\nUNSUBSCRIBE\r\n" + bulk(subscription.channel)).cancel()

    def data_received(self, data: bytes) -> None:
        """Process received data."""
        try:
            if data[:1] == b":" and not self._partial and data.find(b"\r\n") == len(data) - 2 > 0 and self._pending:
                pending = self._pending[0]  # a complete integer: the reply of nearly every script
                if not pending.done():
                    pending.set_result(int(data[1:-2]))
                self._pending.popleft()
            else:
                self._parse(data)
            if self._pending:
                self._last_read = self._loop.time()
        except BaseException:  # a time limit, which the loop logs: replies and requests cannot be matched any more
            self.fail(redis.ConnectionError("interrupted"))
            raise
        if not self._pending and self._finishing and not self._subscriptions:
            self.fail(redis.ConnectionError("closed"))

    def _parse(self, data: bytes) -> None:
        """Pass each complete reply to its request, each message to its subscription."""
        try:
            self._feed(data)
            while (reply := self._gets()) is not False:
                if type(reply) is list and reply and reply[0] == b"message":
                    if (subscription := self._subscriptions.get(reply[1])) is not None:
                        subscription.deliver(reply)
                    continue
                pending = self._pending[0]
                if pending.done():
                    pass
                elif isinstance(reply, ResponseError):
                    pending.set_exception(reply)
                elif isinstance(reply, RedisError):  # the server serves no client, or rejects this connection
                    pending.set_exception(reply)
                    self._pending.popleft()
                    self.fail(reply)
                    return
                else:
                    pending.set_result(reply)
                self._pending.popleft()
        except (RedisError, IndexError) as error:  # unreadable, or without a request
            self.fail(redis.ConnectionError(f"unexpected reply from the server: {error}"))
        self._partial = bool(self._pending or self._subscriptions)  # without these, nothing more can arrive

    def eof_received(self) -> None:
        """Fail the connection: the server has closed it."""
        self.fail(redis.ConnectionError("Connection closed by server."))

    def connection_lost(self, error: Exception | None) -> None:
        """Fail the connection: it has ended."""
        self._stream_protocol.connection_lost(error)
        said = "Connection closed by server." if error is None else f"Error while asking Redis. {error}"
        self.fail(redis.ConnectionError(said))

    def _check_silence(self, again: bool) -> None:
        """Fail the connection if the server has not replied in time. ``again``: this is the second check."""
        self._timer = None
        if not self._pending or self.over:
            return
        if self._loop.time() < self._last_read + TIMEOUT:
            self._timer = self._loop.call_at(self._last_read + TIMEOUT, self._check_silence, False)
        elif not again:
            self._timer = self._loop.call_later(GRACE, self._check_silence, True)
        else:
            self.fail(redis.TimeoutError("Timeout reading from Redis"))

    def fail(self, error: Exception) -> None:
        """Give the connection up: pending requests and subscriptions get an error, and it is closed in a task."""
        if self.over:
            return
        self.over = True
        if self._timer is not None:
            self._timer.cancel()
        first = True
        for pending in self._pending:
            if not pending.done():
                # An error reply of the server belongs to the first request; the others may have been executed.
                pending.set_exception(error if first else redis.ConnectionError(f"the connection was lost: {error}"))
            first = False
        self._pending.clear()
        for subscription in self._subscriptions.values():
            subscription.lost = redis.ConnectionError(f"the connection was lost: {error}")
            subscription.deliver()
        if not self._loop.is_closed():
            _in_background(self._loop, close(self._connection, nowait=True))

    def finish(self) -> None:
        """Close the connection as soon as it has no pending requests and no subscriptions."""
        self._finishing = True
        if not (self._pending or self._subscriptions):
            self.fail(redis.ConnectionError("closed"))

    async def close(self) -> None:
        """Close the connection; with TLS, wait until the other side has closed its end."""
        if self.over:
            return
        if self._pending or self._subscriptions:
            self.fail(redis.ConnectionError("closed"))
            return
        self.over = True
        await uninterrupted(close(self._connection, nowait=False))


Greeting = Callable[[SharedConnection], Awaitable[None]]
"""Sends requests on a new connection before it is used."""


class CurrentConnection:
    """The shared connection in use, opened once for all coroutines that request it at the same time."""

    def __init__(self, pool: redis.asyncio.ConnectionPool, greet: Greeting | None = None) -> None:
        self._pool = pool
        self._greet = greet
        self.connection: SharedConnection | None = None
        """``None`` until there is one; it may be closed already."""
        self._making: asyncio.Task[SharedConnection] | None = None

    async def get(self) -> SharedConnection:
        """Return an open connection."""
        while True:
            if self.connection is not None:
                if not self.connection.over:
                    return self.connection
                self.retire(self.connection)
            if self._making is None:
                self._making = asyncio.get_running_loop().create_task(self._make())
                self._making.add_done_callback(_retrieve_error)
            await asyncio.shield(self._making)

    async def _make(self) -> SharedConnection:
        try:
            connection = SharedConnection(await make(self._pool))
            if self._greet is not None:
                try:
                    await self._greet(connection)
                except BaseException:
                    await connection.close()
                    raise
            self.connection = connection
            return connection
        finally:
            self._making = None

    def retire(self, connection: SharedConnection | None) -> None:
        """Stop handing out ``connection``: it has failed."""
        if connection is not None and connection is self.connection:
            self.connection = None
            connection.finish()

    async def close(self) -> None:
        """Close the connection, also one that is being opened."""
        if self._making is not None:
            self._making.cancel()
            await asyncio.wait([self._making])
        connection, self.connection = self.connection, None
        if connection is not None:
            await connection.close()


async def make(pool: redis.asyncio.ConnectionPool) -> Any:
    """Do what ``pool.make`` does, for coroutines."""
    try:
        return await _make(pool)
    except MISTAKES as error:
        raise NotConnected(error) from error


async def _make(pool: redis.asyncio.ConnectionPool) -> Any:
    connection: Any = pool.connection_class(**pool.connection_kwargs)
    try:
        await connection.connect()
    except BaseException as error:
        await uninterrupted(_discard(pool, connection))
        if lost_in_handshake(error) and await asyncio.to_thread(is_full, connection, error):
            raise redis.ConnectionError(FULL) from error
        raise
    return connection


async def _discard(pool: redis.asyncio.ConnectionPool, connection: Any) -> None:
    await close(connection, nowait=True)
    for sentinels in pools(pool)[1:]:
        with contextlib.suppress(RedisError, OSError):
            await sentinels.disconnect(inuse_connections=False)


async def close(connection: Any, nowait: bool) -> None:
    """Close a connection of redis-py's; ``nowait``: without waiting for the other side."""
    with contextlib.suppress(RedisError, OSError):
        await connection.disconnect(nowait=nowait)


async def uninterrupted(work: Coroutine[Any, Any, None]) -> None:
    """Await ``work`` to its end, however often the caller is cancelled meanwhile: ``location.TIMEOUT`` at most."""
    task = asyncio.ensure_future(work)
    cancelled = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    if not task.cancelled():
        task.result()


_tasks: set[asyncio.Task[None]] = set()  # an event loop has only weak references to its tasks


def _in_background(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> None:
    task = loop.create_task(work)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


def _retrieve_error(task: asyncio.Task[SharedConnection]) -> None:
    """Retrieve the task's error: if its callers were cancelled, asyncio would log it as never retrieved."""
    if not task.cancelled():
        task.exception()
