"""The same wire for coroutines: two connections per event loop, one to ask and one to listen.

They are closed when their loop shuts down its async generators, which ``asyncio.run``,
``async_to_sync`` and the ASGI servers do; a loop that does not leaves that to the
garbage collector.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import AsyncGenerator
from typing import Any

import redis.asyncio
from redis.exceptions import NoPermissionError, NoScriptError, RedisError

from django_tasklock.backends.redis.location import async_pool, pools
from django_tasklock.backends.redis.shared import Current, Ear, SharedConnection
from django_tasklock.backends.redis.wire import Script, answered, final, unavailable


class AsyncWire:
    """The connections of one event loop."""

    def __init__(self, pool: redis.asyncio.ConnectionPool) -> None:
        self._pool = pool
        self._asking = Current(pool)
        self._listening = Current(pool)
        self._closer: AsyncGenerator[None, None] | None = None

    async def call(self, script: Script, tail: bytes, *, again: bool = True) -> tuple[Any, bool]:
        """Do what ``Wire.call`` does, for coroutines."""
        await self._open()
        connection: SharedConnection | None = None
        doubt = False
        try:
            connection = await self._asking.get()
            doubt = True
            return await self.exchange(connection, script, tail), False
        except (RedisError, OSError) as error:
            doubt = doubt and not answered(error)
            if final(error) or (doubt and not again):
                raise unavailable(error, doubt) from error
        self._asking.retire(connection)
        sent = False
        try:
            connection = await self._asking.get()
            sent = True
            return await self.exchange(connection, script, tail), doubt
        except (RedisError, OSError) as error:
            self._asking.retire(connection)
            raise unavailable(error, doubt or (sent and not answered(error))) from error

    async def exchange(self, connection: SharedConnection, script: Script, tail: bytes) -> Any:
        """Send one command, and return its reply."""
        try:
            return await connection.ask(script.by_digest + tail)
        except NoScriptError:
            return await connection.ask(script.by_body + tail)

    async def subscribe(self, channel: str) -> Ear:
        """Listen on ``channel``, confirmed by the server. ``NoPermissionError`` if it may not."""
        await self._open()
        connection = await self._listening.get()
        try:
            return await connection.subscribe(channel)
        except NoPermissionError:
            raise
        except (RedisError, OSError):
            self._listening.retire(connection)
        return await (await self._listening.get()).subscribe(channel)

    async def _open(self) -> None:
        if self._closer is None:
            self._closer = self._close_with_loop()
            await anext(self._closer)

    async def _close_with_loop(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            self._closer = None
            await self._asking.close()
            await self._listening.close()
            for pool in pools(self._pool):
                with contextlib.suppress(RedisError, OSError):
                    await pool.disconnect()


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
        """Do what ``Wire.call`` does, for coroutines."""
        return await self.wire.call(script, tail, again=again)

    async def subscribe(self, channel: str) -> Ear:
        """Listen on ``channel``, confirmed by the server. ``NoPermissionError`` if it may not."""
        try:
            return await self.wire.subscribe(channel)
        except NoPermissionError:
            raise
        except (RedisError, OSError) as error:
            raise unavailable(error) from error
