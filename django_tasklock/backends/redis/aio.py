"""The same wire for coroutines: one set of connections per event loop.

They are closed when their loop shuts down its async generators, which ``asyncio.run``,
``async_to_sync`` and the ASGI servers do; a loop that does not leaves that to the
garbage collector.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Coroutine
from typing import Any

import redis.asyncio
from redis.exceptions import NoPermissionError, NoScriptError, RedisError

from django_tasklock.backends.redis.location import async_pool, connect, pools
from django_tasklock.backends.redis.wire import RESTED, Script, answered, bulk, final, unavailable

__all__ = ["AsyncWire", "AsyncWires"]


class AsyncWire:
    """Connections of one event loop."""

    def __init__(self, pool: redis.asyncio.ConnectionPool) -> None:
        self._pool = pool
        self._idle: deque[tuple[Any, float]] = deque()
        self._closer: AsyncGenerator[None, None] | None = None

    async def call(self, script: Script, tail: bytes, *, again: bool = True) -> tuple[Any, bool]:
        """Like ``Wire.call``."""
        if self._closer is None:
            self._closer = self._close_with_loop()
            await anext(self._closer)
        doubt = False
        try:
            connection = await self.take()
            doubt = True
            return await self.exchange(connection, script, tail), False
        except (RedisError, OSError) as error:
            doubt = doubt and not answered(error)
            if final(error) or (doubt and not again):
                raise unavailable(error, doubt) from error
        await self.drop()
        sent = False
        try:
            connection = await self.take()
            sent = True
            return await self.exchange(connection, script, tail), doubt
        except (RedisError, OSError) as error:
            raise unavailable(error, doubt or (sent and not answered(error))) from error

    async def exchange(self, connection: Any, script: Script, tail: bytes) -> Any:
        """One command and its reply; a cancelled one takes its connection with it."""
        try:
            await connection.send_packed_command([script.by_digest + tail])
            try:
                reply = await connection.read_response()
            except NoScriptError:
                await connection.send_packed_command([script.by_body + tail])
                reply = await connection.read_response()
        except BaseException as error:
            if isinstance(error, Exception) and final(error):
                self.keep(connection)
            else:
                await self.discard(connection)
            raise
        self.keep(connection)
        return reply

    async def take(self) -> Any:
        """A connected connection that no other coroutine uses."""
        while self._idle:
            connection, since = self._idle.pop()
            if time.monotonic() - since < RESTED or open_still(connection):
                return connection
            await self.discard(connection)
        return await connect(self._pool)

    def keep(self, connection: Any) -> None:
        """Put a connection back that has no reply on its way."""
        self._idle.append((connection, time.monotonic()))

    async def discard(self, connection: Any) -> None:
        """Close a connection that may have failed, without waiting for the other side."""
        await undisturbed(self._close(connection, nowait=True))

    async def close(self, connection: Any) -> None:
        """Close one that has not: TLS is not closed before the other side has said so too."""
        await undisturbed(self._close(connection, nowait=False))

    async def _close(self, connection: Any, nowait: bool) -> None:
        try:
            with contextlib.suppress(RedisError, OSError):
                await connection.disconnect(nowait=nowait)
        finally:
            await self._pool.release(connection)

    async def drop(self) -> None:
        """Close what is idle."""
        while self._idle:
            await self.discard(self._idle.pop()[0])

    async def _close_with_loop(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            self._closer = None
            while self._idle:
                await self.close(self._idle.pop()[0])
            for pool in pools(self._pool):
                with contextlib.suppress(RedisError, OSError):
                    await pool.disconnect()


async def undisturbed(work: Coroutine[Any, Any, None]) -> None:
    """Await ``work`` to its end, however often one is cancelled meanwhile, or the pool goes on counting the connection.

    It takes ``location.TIMEOUT`` at most.
    """
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


def open_still(connection: Any) -> bool:
    """Whether an idle connection was not closed by the server, as far as the loop has noticed."""
    reader = getattr(connection, "_reader", None)  # redis-py's own question differs by version, and reads
    return reader is not None and reader.exception() is None and not reader.at_eof()


class AsyncWires:
    """One ``AsyncWire`` per running event loop."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._lock = threading.Lock()
        self._wires: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncWire] = weakref.WeakKeyDictionary()

    @property
    def wire(self) -> AsyncWire:
        """The running loop's."""
        loop = asyncio.get_running_loop()
        found = self._wires.get(loop)
        if found is None:
            with self._lock:
                found = self._wires[loop] = AsyncWire(async_pool(self._location))
        return found

    async def call(self, script: Script, tail: bytes, *, again: bool = True) -> tuple[Any, bool]:
        """Like ``Wire.call``."""
        return await self.wire.call(script, tail, again=again)

    async def subscribe(self, channel: str) -> Any:
        """A connection that listens on ``channel``, confirmed by the server. ``NoPermissionError`` if it may not."""
        wire = self.wire
        connection: Any = None
        try:
            connection = await wire.take()
            await connection.send_packed_command([b"*2\r\n$9\r\nSUBSCRIBE\r\n" + bulk(channel)])
            await connection.read_response()
        except BaseException as error:
            if connection is not None:
                await wire.discard(connection)
            if isinstance(error, RedisError | OSError) and not isinstance(error, NoPermissionError):
                raise unavailable(error) from error
            raise
        return connection

    async def listen(self, connection: Any, seconds: float) -> Any:
        """The next push, or ``None`` if there is none within ``seconds``."""
        if seconds <= 0 or math.isinf(seconds):
            seconds = 0.0005
        return await connection.read_response(timeout=seconds)

    async def discard(self, connection: Any) -> None:
        """Close a connection made by ``subscribe`` that failed."""
        await self.wire.discard(connection)

    async def close(self, connection: Any) -> None:
        """Close a connection made by ``subscribe``."""
        await self.wire.close(connection)
