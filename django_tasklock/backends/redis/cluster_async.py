"""The subscriptions of waiters in a Redis Cluster, until a process has one for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

import redis.asyncio
from redis.exceptions import NoPermissionError, RedisError

from django_tasklock.backends.redis.client import throw_away
from django_tasklock.backends.redis.cluster import Address, ClusterClient, Node, urls_of
from django_tasklock.backends.redis.errors import unavailable
from django_tasklock.backends.redis.keys import Layout
from django_tasklock.backends.redis.location import async_pool
from django_tasklock.backends.redis.script import Script
from django_tasklock.backends.redis.shared import Subscription
from django_tasklock.backends.redis.subscribers import Subscriber, Subscribers
from django_tasklock.backends.redis.wire_async import AsyncWires


class ClusterConnections:
    """The connections of a ``RedisBackend`` to a Redis Cluster."""

    def __init__(self, location: str, layout: Layout) -> None:
        self.wire = ClusterClient(location, layout.prefix)
        self.subscribers = ClusterSubscribers(self.wire, layout)
        self.aio = ClusterAio(self.wire, urls_of(location)[0])

    def close(self) -> None:
        """Close the connections of the threads, and those in use when they are put back."""
        self.subscribers.close()
        self.wire.close()


class ClusterSubscribers:
    """Subscriptions on which this process's threads wait, at the node that serves the slot."""

    def __init__(self, client: ClusterClient, layout: Layout) -> None:
        self._client = client
        self._layout = layout
        self._known: dict[Address, Subscribers] = {}
        self._closed = False

    def idle(self) -> Subscriber | None:
        """Return an idle connection that is still open, if there is one."""
        try:
            return self._of(self._client.serving()).idle()
        except (RedisError, OSError):  # the request that follows will raise the error
            return None

    def new(self, channel: str = "") -> Subscriber:
        """Return a new connection, its subscription confirmed by the server."""
        try:
            node = self._client.serving()
        except (RedisError, OSError) as error:
            raise unavailable(error) from error
        return self._of(node).new(channel)

    def _of(self, node: Node) -> Subscribers:
        found = self._known.setdefault(node.address, Subscribers(self._client.pool(node.address), self._layout))
        if self._closed:
            found.close()
        return found

    def is_subscribed(self, subscriber: Subscriber) -> bool:
        """Tell whether the subscription is at the node that serves the slot now."""
        return self._client.serves(subscriber.connection)

    def keep(self, subscriber: Subscriber) -> None:
        """Return a connection to the pool of that node, or close it if the slot has moved."""
        if self.is_subscribed(subscriber):
            self._of(self._client.serving()).keep(subscriber)
        else:
            throw_away(subscriber.connection)

    def discard(self, subscriber: Subscriber) -> None:
        """Close a connection."""
        throw_away(subscriber.connection)

    def close(self) -> None:
        """Close the idle connections, and those in use when they are put back."""
        self._closed = True
        for found in list(self._known.values()):
            found.close()


class ClusterAio:
    """Runs packed scripts, and subscribes, at the node that serves the slot, for the coroutines of this process."""

    def __init__(self, client: ClusterClient, url: str) -> None:
        self._client = client
        self._url = url
        self._known: dict[Address, AsyncWires] = {}

    def _of(self, node: Node) -> AsyncWires:
        return self._known.setdefault(node.address, AsyncWires(partial(self._pool, node.address)))

    def _pool(self, address: Address) -> redis.asyncio.ConnectionPool:
        pool = async_pool(self._url)
        options = {**pool.connection_kwargs, "host": address[0], "port": address[1]}
        return redis.asyncio.ConnectionPool(connection_class=pool.connection_class, **options)

    def call(self, script: Script, tail: bytes, *, again: bool = True) -> Coroutine[Any, Any, tuple[Any, bool]]:
        """Do what ``ClusterWire.call`` does, for coroutines."""
        return asyncio.to_thread(self._client.call, script, tail, again=again)

    async def _node(self) -> Node:
        return await asyncio.to_thread(self._client.serving)

    def _listening(self) -> AsyncWires | None:
        node = self._client.known
        return None if node is None else self._of(node)

    def idle_subscription(self) -> Subscription | None:
        """Return an idle subscription at the node that serves the slot, if there is one."""
        wires = self._listening()
        return None if wires is None else wires.idle_subscription()

    def is_subscribed(self, subscription: Subscription) -> bool:
        """Tell whether the subscription is at the node that serves the slot now."""
        wires = self._listening()
        return wires is not None and wires.wire.is_subscribed(subscription)

    def keep(self, subscription: Subscription) -> None:
        """Keep a subscription for the next waiter of this loop at that node, or end it if the slot has moved."""
        wires = self._listening()
        if wires is not None and wires.wire.is_subscribed(subscription):
            wires.keep(subscription)
        else:
            subscription.connection.unsubscribe(subscription)

    async def subscribe(self, channel: str) -> Subscription:
        """Subscribe to ``channel``, confirmed by the server. Raises ``NoPermissionError`` if that is forbidden."""
        try:
            return await self._of(await self._node()).subscribe(channel)
        except NoPermissionError:
            raise
        except (RedisError, OSError) as error:
            raise unavailable(error) from error
