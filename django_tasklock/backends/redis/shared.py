"""One connection that all coroutines of an event loop use at once.

Requests go out as they come, and replies come in the same order: a burst of a thousand coroutines needs one connection,
and a cancelled one takes nothing with it, its reply is read and dropped. Whoever waits for a lock listens on such a
connection, too, each on a channel of its own.

Nothing runs while nothing is under way: the task that reads ends with the last reply and the last who listens.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Coroutine
from typing import Any

import redis
import redis.asyncio
from redis.exceptions import RedisError, ResponseError

from django_tasklock.backends.redis.location import TIMEOUT, pools
from django_tasklock.backends.redis.pool import FULL, full, lost_in_greeting

GRACE = 0.05
"""Seconds after a deadline in which the loop looks once more: it may have been busy while the reply lay there."""


class Ear:
    """Hears one channel."""

    def __init__(self, connection: SharedConnection, channel: bytes) -> None:
        self.connection = connection
        self.channel = channel
        self.lost: Exception | None = None
        self._heard: deque[Any] = deque()
        self._bell = asyncio.Event()

    def ring(self, message: Any = None) -> None:
        """Wake whoever listens; with a message, unless the connection is lost."""
        if message is not None:
            self._heard.append(message)
        self._bell.set()

    async def listen(self, seconds: float) -> Any:
        """Return the next message, or ``None`` if there is none within ``seconds``.

        Raises what the connection is lost by.
        """
        if not self._heard and self.lost is None:
            self._bell.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                async with asyncio.timeout(max(seconds, 0.0005)):
                    await self._bell.wait()
        if self._heard:
            return self._heard.popleft()
        if self.lost is not None:
            raise self.lost
        return None


class SharedConnection:
    """A connection with requests on their way. ``connection``: connected, and nobody else's."""

    def __init__(self, connection: Any) -> None:
        connection.socket_timeout = None  # the time is kept here
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._asked: deque[asyncio.Future[Any]] = deque()
        self._ears: dict[bytes, Ear] = {}
        self._reading: asyncio.Task[None] | None = None
        self._heard = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self._over = self._last = False

    @property
    def open(self) -> bool:
        """Whether it was not closed, by either side, as far as the loop has noticed."""
        reader = getattr(self._connection, "_reader", None)  # redis-py's own question differs by version, and reads
        return not self._over and reader is not None and reader.exception() is None and not reader.at_eof()

    async def ask(self, packed: bytes) -> Any:
        """Return the reply to one request. If this is cancelled the reply is read all the same, by nobody."""
        return await (await self._send(packed))

    async def subscribe(self, channel: str) -> Ear:
        """Listen on ``channel``, confirmed by the server."""
        name = channel.encode()
        ear = self._ears[name] = Ear(self, name)
        try:
            await self.ask(b"*2\r\n$9\r\nSUBSCRIBE\r\n$%d\r\n%b\r\n" % (len(name), name))
        except BaseException:
            await self.unsubscribe(ear)
            raise
        return ear

    async def unsubscribe(self, ear: Ear) -> None:
        """Listen there no more; the server's confirmation is not waited for."""
        if self._ears.pop(ear.channel, None) is None or self._over:
            return
        with contextlib.suppress(RedisError, OSError):
            name = ear.channel
            (await self._send(b"*2\r\n$11\r\nUNSUBSCRIBE\r\n$%d\r\n%b\r\n" % (len(name), name))).cancel()

    async def _send(self, packed: bytes) -> asyncio.Future[Any]:
        if self._over:
            raise redis.ConnectionError("the connection was lost")
        reply: asyncio.Future[Any] = self._loop.create_future()
        if not self._asked:
            self._heard = self._loop.time()
        self._asked.append(reply)
        if self._watch is None:
            self._watch = self._loop.call_at(self._heard + TIMEOUT, self._look, False)
        try:
            await self._connection.send_packed_command([packed])
        except BaseException as error:  # nobody knows how much of it was sent
            reply.cancel()
            self.fail(error if isinstance(error, Exception) else redis.ConnectionError("interrupted while sending"))
            raise
        if self._reading is None:
            self._reading = self._loop.create_task(self._read())
        return reply

    async def _read(self) -> None:
        try:
            while self._asked or self._ears:
                try:
                    reply = await self._connection.read_response()
                except ResponseError as error:  # that is an answer, too
                    reply = error
                self._heard = self._loop.time()
                if isinstance(reply, list) and reply and reply[0] == b"message":
                    if (ear := self._ears.get(reply[1])) is not None:
                        ear.ring(reply)
                    continue
                asked = self._asked.popleft()
                if asked.done():
                    continue
                if isinstance(reply, ResponseError):
                    asked.set_exception(reply)
                else:
                    asked.set_result(reply)
        except BaseException as error:
            self._reading = None
            self.fail(error if isinstance(error, Exception) else redis.ConnectionError("interrupted while reading"))
            if not isinstance(error, RedisError | OSError):
                raise
        self._reading = None
        if self._last:
            self.fail(redis.ConnectionError("closed"))

    def _look(self, again: bool) -> None:
        """Look whether the server is silent."""
        self._watch = None
        if not self._asked or self._over:
            return
        if self._loop.time() < self._heard + TIMEOUT:
            self._watch = self._loop.call_at(self._heard + TIMEOUT, self._look, False)
        elif not again:
            self._watch = self._loop.call_later(GRACE, self._look, True)
        else:
            self.fail(redis.TimeoutError("Timeout reading from Redis"))

    def fail(self, error: Exception) -> None:
        """Give it up: whoever has asked, or listens, is told; the connection is closed soon."""
        if self._over:
            return
        self._over = True
        if self._watch is not None:
            self._watch.cancel()
        first = True
        for asked in self._asked:
            if not asked.done():
                # What the server said was said to the first; the others may have been executed.
                asked.set_exception(error if first else redis.ConnectionError(f"the connection was lost: {error}"))
            first = False
        self._asked.clear()
        for ear in self._ears.values():
            ear.lost = redis.ConnectionError(f"the connection was lost: {error}")
            ear.ring()
        if self._reading is not None:
            self._reading.cancel()
        _closing(close(self._connection, nowait=True))

    def finish(self) -> None:
        """Close it as soon as nobody waits for anything on it."""
        self._last = True
        if self._reading is None:
            self.fail(redis.ConnectionError("closed"))

    async def close(self) -> None:
        """Close it; TLS is not closed before the other side has said so too."""
        if self._over:
            return
        if self._asked or self._ears:
            self.fail(redis.ConnectionError("closed"))
            return
        self._over = True
        await undisturbed(close(self._connection, nowait=False))


class Current:
    """The connection that is shared just now, made once for all who ask for it meanwhile."""

    def __init__(self, pool: redis.asyncio.ConnectionPool) -> None:
        self._pool = pool
        self._connection: SharedConnection | None = None
        self._making: asyncio.Task[SharedConnection] | None = None

    async def get(self) -> SharedConnection:
        """Return an open one."""
        while True:
            if self._connection is not None:
                if self._connection.open:
                    return self._connection
                self.retire(self._connection)
            if self._making is None:
                self._making = asyncio.get_running_loop().create_task(self._make())
                self._making.add_done_callback(_seen)
            await asyncio.shield(self._making)

    async def _make(self) -> SharedConnection:
        try:
            self._connection = SharedConnection(await make(self._pool))
            return self._connection
        finally:
            self._making = None

    def retire(self, connection: SharedConnection | None) -> None:
        """Let nobody else have this one: it has failed."""
        if connection is not None and connection is self._connection:
            self._connection = None
            connection.finish()

    async def close(self) -> None:
        """Close it."""
        if self._making is not None:
            self._making.cancel()
            await asyncio.wait([self._making])
        connection, self._connection = self._connection, None
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


def _closing(work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.get_running_loop().create_task(work)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


def _seen(task: asyncio.Task[SharedConnection]) -> None:
    """Retrieve the error: whoever wanted it may have been cancelled, and then nobody asks why it failed."""
    if not task.cancelled():
        task.exception()
