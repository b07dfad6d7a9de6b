"""The connections of a ``RedisBackend``: the protocols it needs, and the implementation for a single server."""

from __future__ import annotations

import threading
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, Protocol

from django_tasklock.backends.redis.client import Client
from django_tasklock.backends.redis.keys import Layout
from django_tasklock.backends.redis.location import async_pool, sync_pool
from django_tasklock.backends.redis.script import Script
from django_tasklock.backends.redis.shared import Subscription
from django_tasklock.backends.redis.subscribers import Subscriber, Subscribers
from django_tasklock.backends.redis.wire_async import AsyncWires


class Asking(Protocol):
    """Runs scripts for the threads of this process: see ``Client``."""

    def call(self, script: Script, tail: bytes, *, again: bool = True) -> tuple[Any, bool]:
        """Run ``script``; return its reply, and whether an earlier attempt may have been executed too."""

    def run(
        self, script: Script, keys: Sequence[str], args: Sequence[str | bytes | int] = (), *, again: bool = True
    ) -> tuple[Any, bool]:
        """Do what ``call`` does, with keys and arguments that are not encoded yet."""


class Listening(Protocol):
    """Subscribed connections, on which the threads of this process wait: see ``Subscribers``."""

    def idle(self) -> Subscriber | None:
        """Return an idle connection that is still open, if there is one."""

    def new(self, channel: str = "") -> Subscriber:
        """Return a new connection, its subscription confirmed by the server."""

    def is_subscribed(self, subscriber: Subscriber) -> bool:
        """Tell whether the connection is to the server that hands over the lock."""

    def keep(self, subscriber: Subscriber) -> None:
        """Put a connection back for the next waiter."""

    def discard(self, subscriber: Subscriber) -> None:
        """Close a connection."""


class AsyncAsking(Protocol):
    """Commands and subscriptions of coroutines: see ``AsyncWires``."""

    def call(self, script: Script, tail: bytes, *, again: bool = True) -> Coroutine[Any, Any, tuple[Any, bool]]:
        """Do what ``Asking.call`` does, for coroutines."""

    def idle_subscription(self) -> Subscription | None:
        """Return an idle subscription, if there is one."""

    def is_subscribed(self, subscription: Subscription) -> bool:
        """Tell whether the subscription is at the server that hands over the lock."""

    def keep(self, subscription: Subscription) -> None:
        """Put a subscription back for the next waiter of this loop."""

    async def subscribe(self, channel: str) -> Subscription:
        """Subscribe to ``channel``, confirmed by the server."""


class Connections(Protocol):
    """The connections of a ``RedisBackend``."""

    @property
    def wire(self) -> Asking:
        """The connections of this process's threads, made on first use."""

    @property
    def subscribers(self) -> Listening:
        """The connections on which this process's threads wait."""

    @property
    def aio(self) -> AsyncAsking:
        """The connections of this process's event loops."""

    def close(self) -> None:
        """Close the connections of the threads, those in use when they are put back. Each later request opens one."""


class OneServer:
    """The connections to the server that a setting names."""

    def __init__(self, location: str, layout: Layout) -> None:
        self._location = location
        self._layout = layout
        self._lock = threading.Lock()
        self._made: tuple[Client, Subscribers] | None = None
        self._closed = False
        self.aio = AsyncWires(partial(async_pool, location))

    @property
    def wire(self) -> Client:
        """The connections of this process's threads, made on first use."""
        return self._both()[0]

    @property
    def subscribers(self) -> Subscribers:
        """The connections on which this process's threads wait."""
        return self._both()[1]

    def _both(self) -> tuple[Client, Subscribers]:
        if (made := self._made) is None:
            with self._lock:
                if (made := self._made) is None:
                    pool = sync_pool(self._location)
                    made = self._made = Client(pool), Subscribers(pool, self._layout)
                    if self._closed:
                        _close(made)
        return made

    def close(self) -> None:
        """Close the connections of the threads, and those in use when they are put back."""
        with self._lock:
            self._closed = True
            if self._made is not None:
                _close(self._made)


def _close(made: tuple[Client, Subscribers]) -> None:
    wire, subscribers = made
    subscribers.close()
    wire.close()
