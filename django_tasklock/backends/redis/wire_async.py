"""``Wire`` for coroutines: two connections per event loop, one for commands and one for subscriptions.

They are closed when the loop shuts down its async generators, as ``asyncio.run``,
``async_to_sync`` and the ASGI servers do; of a loop that does not, the garbage collector
closes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

import redis.asyncio
from redis.exceptions import NoPermissionError, NoScriptError, RedisError

from django_tasklock.backends.redis.client import Idle
from django_tasklock.backends.redis.errors import is_final, unavailable, was_answered
from django_tasklock.backends.redis.location import pools
from django_tasklock.backends.redis.script import Script
from django_tasklock.backends.redis.shared import CurrentConnection, Greeting, SharedConnection, Subscription

SUBSCRIPTIONS = 128  # idle subscriptions kept for the next waiters: a channel costs next to nothing


class AsyncWire:
    """The connections of one event loop."""

    def __init__(
        self, pool: redis.asyncio.ConnectionPool, loop: asyncio.AbstractEventLoop, greet: Greeting | None = None
    ) -> None:
        self._pool = pool
        self.loop = weakref.ref(loop)
        self._asking = CurrentConnection(pool, greet)
        self._listening = CurrentConnection(pool)
        self._subscriptions: Idle[Subscription] = Idle(_unsubscribe, SUBSCRIPTIONS)
        self._closer: AsyncGenerator[None, None] | None = None

    async def call(self, script: Script, tail: bytes, *, again: bool = True) -> tuple[Any, bool]:
        """Do what ``Wire.call`` does, for coroutines."""
        connection = self._asking.connection
        doubt = False
        try:
            if connection is None or connection.over:
                await self._open()
                connection = await self._asking.get()
            doubt = True
            try:
                return await connection.ask(script.by_digest + tail), False
            except NoScriptError:
                return await connection.ask(script.by_body + tail), False
        except (RedisError, OSError) as error:
            doubt = doubt and not was_answered(error)
            if is_final(error) or (doubt and not again):
                raise unavailable(error, doubt) from error
        self._asking.retire(connection)
        sent = False
        try:
            connection = await self._asking.get()
            sent = True
            try:
                return await connection.ask(script.by_digest + tail), doubt
            except NoScriptError:
                return await connection.ask(script.by_body + tail), doubt
        except (RedisError, OSError) as error:
            self._asking.retire(connection)
            raise unavailable(error, doubt or (sent and not was_answered(error))) from error

    async def asking(self) -> SharedConnection:
        """Return the open connection for this loop's commands."""
        await self._open()
        return await self._asking.get()

    def retire(self) -> None:
        """Stop using the connection for commands: it has failed."""
        self._asking.retire(self._asking.connection)

    def idle_subscription(self) -> Subscription | None:
        """Return an idle subscription, if there is one."""
        while (found := self._subscriptions.take()) is not None:
            subscription = found[0]
            if subscription.lost is None:
                subscription.clear()
                return subscription
        return None

    def is_subscribed(self, subscription: Subscription) -> bool:
        """Tell whether the subscription is on the connection in use."""
        return subscription.lost is None and subscription.connection is self._listening.connection

    def keep(self, subscription: Subscription) -> None:
        """Put a subscription back for the next waiter."""
        if self.is_subscribed(subscription):
            self._subscriptions.keep(subscription)
        else:
            subscription.connection.unsubscribe(subscription)

    async def subscribe(self, channel: str) -> Subscription:
        """Subscribe to ``channel``, confirmed by the server. ``NoPermissionError`` if this user may not."""
        await self._open()
        connection = await self._listening.get()
        try:
            return await connection.subscribe(channel)
        except NoPermissionError:
            raise
        except (RedisError, OSError):
            self._listening.retire(connection)
            self._subscriptions.clear()
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
            self._subscriptions.clear()
            await self._asking.close()
            await self._listening.close()
            for pool in pools(self._pool):
                with contextlib.suppress(RedisError, OSError):
                    await pool.disconnect()


class AsyncWires:
    """One ``AsyncWire`` per running event loop."""

    def __init__(
        self,
        pool: Callable[[], redis.asyncio.ConnectionPool],
        greet: Greeting | None = None,
    ) -> None:
        self._pool = pool
        self._greet = greet
        self._lock = threading.Lock()
        self._wires: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncWire] = weakref.WeakKeyDictionary()
        self._latest: AsyncWire | None = None

    @property
    def wire(self) -> AsyncWire:
        """The connections of the running event loop."""
        loop = asyncio.get_running_loop()
        found = self._latest
        if found is None or found.loop() is not loop:
            found = self._wires.get(loop)
            if found is None:
                with self._lock:
                    found = self._wires[loop] = AsyncWire(self._pool(), loop, self._greet)
            self._latest = found
        return found

    def call(self, script: Script, tail: bytes, *, again: bool = True) -> Coroutine[Any, Any, tuple[Any, bool]]:
        """Do what ``Wire.call`` does, for coroutines."""
        return self.wire.call(script, tail, again=again)

    def idle_subscription(self) -> Subscription | None:
        """Return an idle subscription, if there is one."""
        return self.wire.idle_subscription()

    def is_subscribed(self, subscription: Subscription) -> bool:
        """Tell whether the subscription is at the server that hands over the lock: always, there is one server."""
        return True

    def keep(self, subscription: Subscription) -> None:
        """Put a subscription back for the next waiter of this loop."""
        self.wire.keep(subscription)

    async def subscribe(self, channel: str) -> Subscription:
        """Subscribe to ``channel``, confirmed by the server. ``NoPermissionError`` if this user may not."""
        try:
            return await self.wire.subscribe(channel)
        except NoPermissionError:
            raise
        except (RedisError, OSError) as error:
            raise unavailable(error) from error


def _unsubscribe(subscription: Subscription) -> None:
    subscription.connection.unsubscribe(subscription)
