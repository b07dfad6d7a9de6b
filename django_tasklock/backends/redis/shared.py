"""One connection that all coroutines of an event loop use at once.

redis-py makes it; from then on what arrives on its transport comes here, to a parser of replies, nothing between.
Requests go out as they come, and replies come in the same order: a burst of a thousand coroutines needs one connection,
and a cancelled one takes nothing with it, its reply is read and dropped. Whoever waits for a lock listens on such a
connection, too, each on a channel of its own.
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
from django_tasklock.backends.redis.location import TIMEOUT, pools
from django_tasklock.backends.redis.pool import full, lost_in_greeting
from django_tasklock.backends.redis.reader import reader
from django_tasklock.backends.redis.script import bulk

GRACE = 0.05
"""Seconds after a deadline in which the loop looks once more: it may have been busy while the reply lay there."""


class Ear:
    """Hears one channel."""

    def __init__(self, connection: SharedConnection, channel: str) -> None:
        self.connection = connection
        self.channel = channel
        self.lost: Exception | None = None
        """What the connection is lost by."""
        self._heard: deque[Any] = deque()
        self._listening: asyncio.Future[None] | None = None

    def hear(self, message: Any = None) -> None:
        """Wake whoever listens; with a message, unless the connection is lost."""
        if message is not None:
            self._heard.append(message)
        if self._listening is not None:
            _wake(self._listening)

    async def listen(self, seconds: float) -> Any:
        """Return the next message, or ``None`` if there is none within ``seconds``.

        Raises what the connection is lost by.
        """
        if not self._heard and self.lost is None:
            loop = asyncio.get_running_loop()
            self._listening = loop.create_future()
            ends = loop.call_later(max(seconds, 0.0005), _wake, self._listening)
            try:
                await self._listening
            finally:
                self._listening = None
                ends.cancel()
        if self._heard:
            return self._heard.popleft()
        if self.lost is not None:
            raise self.lost
        return None

    def forget(self) -> None:
        """Forget what nobody has listened to."""
        self._heard.clear()


def _wake(listening: asyncio.Future[None]) -> None:
    if not listening.done():
        listening.set_result(None)


class SharedConnection(asyncio.Protocol):
    """A connection with requests on their way. ``connection``: redis-py's, connected, and nobody else's."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._pending: deque[asyncio.Future[Any]] = deque()
        self._ears: dict[bytes, Ear] = {}
        self._heard = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self.over = False
        """Whether it was closed, by either side, as far as the loop has noticed."""
        self._last = False
        self._midway = False
        """Whether the parser may have a part of a reply."""
        parser = reader()
        self._feed, self._gets = parser.feed, parser.gets
        self._transport: asyncio.Transport = connection._writer.transport
        self._former = self._transport.get_protocol()  # redis-py's streams: they are told when it has ended
        self._transport.set_protocol(self)
        if connection._reader.at_eof() or self._transport.is_closing():
            self.eof_received()

    def ask(self, packed: bytes) -> asyncio.Future[Any]:
        """Send one request; return its reply, to be awaited. If that is cancelled the reply is read and dropped."""
        if self.over:
            raise redis.ConnectionError("the connection was lost")
        reply = self._loop.create_future()
        if not self._pending:
            self._heard = self._loop.time()
        self._pending.append(reply)
        if self._watch is None:
            self._watch = self._loop.call_at(self._heard + TIMEOUT, self._look, False)
        self._transport.write(packed)
        return reply

    async def ask_both(self, packed: bytes) -> tuple[Any, Any]:
        """Do what ``Link.ask_both`` does, for coroutines."""
        first, second = self.ask(packed), self._loop.create_future()
        self._pending.append(second)
        try:
            reply = await first
            try:
                return reply, await second
            except ResponseError as error:
                return reply, error
        finally:
            second.cancel()

    async def subscribe(self, channel: str) -> Ear:
        """Listen on ``channel``, confirmed by the server."""
        ear = self._ears[channel.encode()] = Ear(self, channel)
        try:
            await self.ask(b"*2\r\n$9\r\nSUBSCRIBE\r\n" + bulk(channel))
        except BaseException:
            self.unsubscribe(ear)
            raise
        return ear

    def unsubscribe(self, ear: Ear) -> None:
        """Listen there no more; the server's confirmation is not waited for."""
        if self._ears.pop(ear.channel.encode(), None) is not None and not self.over:
            self.ask(b"*2\r\n$11\r\nUNSUBSCRIBE\r\n" + bulk(ear.channel)).cancel()

    def data_received(self, data: bytes) -> None:
        """Take in what has arrived."""
        try:
            if data[:1] == b":" and not self._midway and data.find(b"\r\n") == len(data) - 2 > 0 and self._pending:
                oldest = self._pending[0]  # a number, and whole: what nearly every script says
                if not oldest.done():
                    oldest.set_result(int(data[1:-2]))
                self._pending.popleft()
            else:
                self._parse(data)
            if self._pending:
                self._heard = self._loop.time()
        except BaseException:  # a time limit, which the loop logs: whose the next reply is nobody knows any more
            self.fail(redis.ConnectionError("interrupted"))
            raise
        if not self._pending and self._last and not self._ears:
            self.fail(redis.ConnectionError("closed"))

    def _parse(self, data: bytes) -> None:
        """Give every reply that is whole to who has asked for it, every message to who listens."""
        try:
            self._feed(data)
            while (reply := self._gets()) is not False:
                if type(reply) is list and reply and reply[0] == b"message":
                    if (ear := self._ears.get(reply[1])) is not None:
                        ear.hear(reply)
                    continue
                oldest = self._pending[0]
                if oldest.done():
                    pass
                elif isinstance(reply, ResponseError):
                    oldest.set_exception(reply)
                elif isinstance(reply, RedisError):  # the server answers nobody, or will not have this connection
                    oldest.set_exception(reply)
                    self._pending.popleft()
                    self.fail(reply)
                    return
                else:
                    oldest.set_result(reply)
                self._pending.popleft()
        except (RedisError, IndexError) as error:  # what cannot be read, or nobody has asked for
            self.fail(redis.ConnectionError(f"the server said what it was not asked for: {error}"))
        self._midway = bool(self._pending or self._ears)  # nothing comes that nobody has asked for

    def eof_received(self) -> None:
        """Note that the server has closed the connection."""
        self.fail(redis.ConnectionError("Connection closed by server."))

    def connection_lost(self, error: Exception | None) -> None:
        """Note that the connection has ended."""
        self._former.connection_lost(error)
        said = "Connection closed by server." if error is None else f"Error while asking Redis. {error}"
        self.fail(redis.ConnectionError(said))

    def _look(self, again: bool) -> None:
        """Look whether the server is silent."""
        self._watch = None
        if not self._pending or self.over:
            return
        if self._loop.time() < self._heard + TIMEOUT:
            self._watch = self._loop.call_at(self._heard + TIMEOUT, self._look, False)
        elif not again:
            self._watch = self._loop.call_later(GRACE, self._look, True)
        else:
            self.fail(redis.TimeoutError("Timeout reading from Redis"))

    def fail(self, error: Exception) -> None:
        """Give the connection up: pending replies and listeners get ``error``, and it is closed soon."""
        if self.over:
            return
        self.over = True
        if self._watch is not None:
            self._watch.cancel()
        first = True
        for pending in self._pending:
            if not pending.done():
                # What the server said was said to the first; the others may have been executed.
                pending.set_exception(error if first else redis.ConnectionError(f"the connection was lost: {error}"))
            first = False
        self._pending.clear()
        for ear in self._ears.values():
            ear.lost = redis.ConnectionError(f"the connection was lost: {error}")
            ear.hear()
        if not self._loop.is_closed():
            _closing(self._loop, close(self._connection, nowait=True))

    def finish(self) -> None:
        """Close the connection as soon as nobody waits for anything on it."""
        self._last = True
        if not (self._pending or self._ears):
            self.fail(redis.ConnectionError("closed"))

    async def close(self) -> None:
        """Close the connection, with TLS after the other side has closed its end of it."""
        if self.over:
            return
        if self._pending or self._ears:
            self.fail(redis.ConnectionError("closed"))
            return
        self.over = True
        await undisturbed(close(self._connection, nowait=False))


Greeting = Callable[[SharedConnection], Awaitable[None]]
"""What is asked on a new connection before anybody has it."""


class Current:
    """The connection that is shared just now, made once for all who ask for it meanwhile."""

    def __init__(self, pool: redis.asyncio.ConnectionPool, greet: Greeting | None = None) -> None:
        self._pool = pool
        self._greet = greet
        self.connection: SharedConnection | None = None
        """It, unless there is none yet; it may be over."""
        self._making: asyncio.Task[SharedConnection] | None = None

    async def get(self) -> SharedConnection:
        """Return an open one."""
        while True:
            if self.connection is not None:
                if not self.connection.over:
                    return self.connection
                self.retire(self.connection)
            if self._making is None:
                self._making = asyncio.get_running_loop().create_task(self._make())
                self._making.add_done_callback(_seen)
            await asyncio.shield(self._making)

    async def _make(self) -> SharedConnection:
        try:
            connection = SharedConnection(await make(self._pool))
            if self._greet is not None:
                await self._greet(connection)
            self.connection = connection
            return connection
        finally:
            self._making = None

    def retire(self, connection: SharedConnection | None) -> None:
        """Let nobody else have this one: it has failed."""
        if connection is not None and connection is self.connection:
            self.connection = None
            connection.finish()

    async def close(self) -> None:
        """Close it."""
        if self._making is not None:
            self._making.cancel()
            await asyncio.wait([self._making])
        connection, self.connection = self.connection, None
        if connection is not None:
            await connection.close()


async def make(pool: redis.asyncio.ConnectionPool) -> Any:
    """Do what ``pool.make`` does, for coroutines."""
    connection: Any = pool.connection_class(**pool.connection_kwargs)
    try:
        await connection.connect()
    except BaseException as error:
        await undisturbed(_unmake(pool, connection))
        if lost_in_greeting(error) and await asyncio.to_thread(full, connection, error):
            raise redis.ConnectionError(FULL) from error
        raise
    return connection


async def _unmake(pool: redis.asyncio.ConnectionPool, connection: Any) -> None:
    await close(connection, nowait=True)
    for sentinels in pools(pool)[1:]:
        with contextlib.suppress(RedisError, OSError):
            await sentinels.disconnect(inuse_connections=False)


async def close(connection: Any, nowait: bool) -> None:
    """Close a connection of redis-py's; ``nowait``: whatever the other side does."""
    with contextlib.suppress(RedisError, OSError):
        await connection.disconnect(nowait=nowait)


async def undisturbed(work: Coroutine[Any, Any, None]) -> None:
    """Await ``work`` to its end, however often one is cancelled meanwhile. It takes ``location.TIMEOUT`` at most."""
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


_tasks: set[asyncio.Task[None]] = set()  # a loop keeps its tasks weakly


def _closing(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> None:
    task = loop.create_task(work)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


def _seen(task: asyncio.Task[SharedConnection]) -> None:
    """Retrieve the error: whoever wanted it may have been cancelled, and then nobody asks why it failed."""
    if not task.cancelled():
        task.exception()
