"""The connections to a Redis Cluster for encoded commands, until ``RedisBackend`` runs on clients."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from time import monotonic
from typing import Any, cast

import redis
import redis.asyncio
from redis.exceptions import ClusterDownError, MovedError, NoPermissionError, NoScriptError, RedisError

from django_tasklock.backends.redis.client import Client, ask, connect, throw_away
from django_tasklock.backends.redis.cluster import (
    ASKING,
    GUARD,
    LOOKING,
    Address,
    Course,
    address_of,
    slot_of,
    starts_of,
    urls_of,
)
from django_tasklock.backends.redis.errors import unavailable
from django_tasklock.backends.redis.keys import Layout
from django_tasklock.backends.redis.location import async_pool
from django_tasklock.backends.redis.script import Script
from django_tasklock.backends.redis.shared import Subscription
from django_tasklock.backends.redis.subscribers import Subscriber, Subscribers
from django_tasklock.backends.redis.wire_async import AsyncWires


class Node:
    """A server of the cluster, and the connections to it."""

    def __init__(self, address: Address, pool: redis.ConnectionPool, layout: Layout, asynchronous: Any) -> None:
        self.address = address
        self.wire = Client(pool)
        self.subscribers = Subscribers(pool, layout)
        self.aio = AsyncWires(asynchronous)

    def close(self) -> None:
        """Close the connections of threads, and those in use when they are put back."""
        self.subscribers.close()
        self.wire.close()

    def __str__(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"


class Nodes:
    """The nodes of a cluster as far as this process knows them, and which serves the slot. For any thread."""

    def __init__(self, location: str, layout: Layout) -> None:
        self.slot = slot_of(layout.prefix)
        self._layout = layout
        pools = starts_of(location)
        self._kind, self._options = pools[0].connection_class, pools[0].connection_kwargs
        self._url = urls_of(location)[0]
        self._starts = [address_of([pool.connection_kwargs.get(key) for key in ("host", "port")]) for pool in pools]
        self._others: list[Address] = []
        self._known: dict[Address, Node] = {}
        self._serving: Node | None = None
        self._looking = threading.Lock()
        self._looked = 0.0
        self._closed = False

    @property
    def known(self) -> bool:
        """Whether a node that serves the slot is known."""
        return self._serving is not None

    def serving(self) -> Node:
        """Return the node that serves the slot. Raises redis-py's errors if no node reports one."""
        node = self._serving
        if node is None:
            self.look(monotonic())
            node = self._serving
        if node is None:
            raise ClusterDownError(f"CLUSTERDOWN no node serves slot {self.slot}")
        return node

    def moved(self, error: MovedError, by: Node) -> None:
        """Record the node that serves the slot now, from a MOVED error of node ``by``."""
        self._serving = self._at((str(error.host) or by.address[0], int(error.port)))

    def look(self, since: float, without: Node | None = None) -> None:
        """Ask a node for the slots, unless one was asked after ``since`` (monotonic). Raises redis-py's errors.

        ``without``: the node that is asked last, because it has just failed.
        """
        with self._looking:
            if self._looked > since:
                return
            ends, trouble = monotonic() + LOOKING, None
            last = None if without is None else without.address
            candidates = dict.fromkeys([*self._others, *self._starts])
            for address in sorted(candidates, key=lambda one: one == last):
                try:
                    self._take_over(address, self._ask(address))
                    return
                except (RedisError, OSError) as error:
                    trouble = trouble or error
                if monotonic() > ends:
                    break
            raise trouble or redis.ConnectionError("no node of the cluster is known")

    def _ask(self, address: Address) -> list[Any]:
        connection = connect(self._pool(address, socket_timeout=ASKING, socket_connect_timeout=ASKING))
        try:
            found = ask(connection, "CLUSTER", "SLOTS")
        finally:
            throw_away(connection)
        if not found:
            raise ClusterDownError(f"CLUSTERDOWN {address[0]}:{address[1]} reports no slots")
        return found  # type: ignore[no-any-return]

    def _take_over(self, answering: Address, ranges: list[Any]) -> None:
        """Take what ``answering`` reports: a primary and its replicas for each range of slots."""
        serving = None
        others: list[Address] = []
        for first, last, *nodes in ranges:
            addresses = [address_of(node, answering) for node in nodes]
            others += addresses
            if first <= self.slot <= last:
                serving = addresses[0]
        self._others = others
        self._serving = None if serving is None else self._at(serving)
        self._looked = monotonic()
        for address in list(self._known):
            if address != serving:
                self._known.pop(address).close()

    def _at(self, address: Address) -> Node:
        node = self._known.get(address)
        if node is None:
            made = Node(address, self._pool(address), self._layout, partial(self._async_pool, address))
            node = self._known.setdefault(address, made)
            if self._closed:
                node.close()
        return node

    def _pool(self, address: Address, **more: Any) -> redis.ConnectionPool:
        options = {**self._options, "host": address[0], "port": address[1], **more}
        return redis.ConnectionPool(connection_class=self._kind, **options)

    def _async_pool(self, address: Address) -> redis.asyncio.ConnectionPool:
        pool = async_pool(self._url)
        options = {**pool.connection_kwargs, "host": address[0], "port": address[1]}
        return redis.asyncio.ConnectionPool(connection_class=pool.connection_class, **options)

    def close(self) -> None:
        """Close the connections of threads at all nodes, and those in use when they are put back."""
        self._closed = True
        for node in list(self._known.values()):
            with suppress(RedisError, OSError):
                node.close()


def guarded(script: Script) -> Script:
    """Return the script with the guard: while its slot is being moved it fails before it has done anything."""
    return _guarded(script.body, script.count, script.keys)


@lru_cache(maxsize=256)  # by text: there are some forty
def _guarded(body: str, count: int, keys: int) -> Script:
    return Script(GUARD + body, count, keys)


class ClusterWire:
    """Runs packed scripts at the node that serves the slot, for the threads of this process."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    def run(
        self, script: Script, keys: Sequence[str], args: Sequence[str | bytes | int] = (), *, again: bool = True
    ) -> tuple[Any, bool]:
        """Do what ``Client.run`` does. Find the node again after a failover or a move."""
        return self._run(guarded(script), keys, args, again)

    def call(self, script: Script, tail: bytes, *, again: bool = True) -> tuple[Any, bool]:
        """Do what ``run`` does, with encoded keys and arguments."""
        return self._run(guarded(script), tail, (), again)

    def _run(self, script: Script, keys: Any, args: Sequence[str | bytes | int], again: bool) -> tuple[Any, bool]:
        began, course = monotonic(), None
        while True:
            node: Node | None = None
            sent = False
            try:
                if course is not None and course.looks is not None:
                    self._nodes.look(course.looks, cast(Any, course.without))
                node = self._nodes.serving()
                connection = node.wire.take()
                sent = True
                return node.wire.exchange(connection, script, keys, args), course is not None and course.doubt
            except (RedisError, OSError) as error:
                course = course or Course(cast(Any, self._nodes), began, again)
                pause = course.delay_after(error, cast(Any, node), sent)
            if node is not None and course.looks is not None:
                node.wire.clear()  # idle connections are as old as the one that failed
            if pause:
                time.sleep(pause)


class ClusterSubscribers:
    """Subscriptions on which this process's threads wait, at the node that serves the slot.

    A publish counts the subscribers at the node that executes it, and that is the node that serves the slot.
    """

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    def idle(self) -> Subscriber | None:
        """Return an idle connection that is still open, if there is one."""
        try:
            return self._nodes.serving().subscribers.idle()
        except (RedisError, OSError):  # the request that follows will raise the error
            return None

    def new(self, channel: str = "") -> Subscriber:
        """Return a new connection, its subscription confirmed by the server."""
        return self._node().subscribers.new(channel)

    def is_subscribed(self, subscriber: Subscriber) -> bool:
        """Tell whether the subscription is at the node that serves the slot now."""
        try:
            return _subscribed(subscriber) == self._nodes.serving().address
        except (RedisError, OSError):
            return False

    def keep(self, subscriber: Subscriber) -> None:
        """Return a connection to the pool of that node, or close it if the slot has moved."""
        if self.is_subscribed(subscriber):
            self._node().subscribers.keep(subscriber)
        else:
            throw_away(subscriber.connection)

    def discard(self, subscriber: Subscriber) -> None:
        """Close a connection."""
        throw_away(subscriber.connection)

    def _node(self) -> Node:
        try:
            return self._nodes.serving()
        except (RedisError, OSError) as error:
            raise unavailable(error) from error


def _subscribed(subscriber: Subscriber) -> Address:
    return str(subscriber.connection.host), int(subscriber.connection.port)


class ClusterConnections:
    """The connections of a ``RedisBackend`` to a Redis Cluster."""

    def __init__(self, location: str, layout: Layout) -> None:
        self._nodes = Nodes(location, layout)
        self.wire = ClusterWire(self._nodes)
        self.subscribers = ClusterSubscribers(self._nodes)
        self.aio = ClusterAio(self._nodes)

    def close(self) -> None:
        """Close the connections of the threads, and those in use when they are put back."""
        self._nodes.close()


class ClusterAio:
    """Runs packed scripts, and subscribes, at the node that serves the slot, for the coroutines of this process."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    def call(self, script: Script, tail: bytes, *, again: bool = True) -> Coroutine[Any, Any, tuple[Any, bool]]:
        """Do what ``ClusterWire.call`` does, for coroutines."""
        return self._call(guarded(script), tail, again)

    async def _call(self, script: Script, tail: bytes, again: bool) -> tuple[Any, bool]:
        began, course = monotonic(), None
        while True:
            node: Node | None = None
            sent = False
            try:
                if course is not None and course.looks is not None:
                    await asyncio.to_thread(self._nodes.look, course.looks, cast(Any, course.without))
                node = await self._node()
                asking = await node.aio.wire.asking()
                sent = True
                try:
                    reply = await asking.ask(script.by_digest + tail)
                except NoScriptError:
                    reply = await asking.ask(script.by_body + tail)
                return reply, course is not None and course.doubt
            except (RedisError, OSError) as error:
                course = course or Course(cast(Any, self._nodes), began, again)
                pause = course.delay_after(error, cast(Any, node), sent)
            if node is not None and course.looks is not None:
                node.aio.wire.retire()
            if pause:
                await asyncio.sleep(pause)

    async def _node(self) -> Node:
        if not self._nodes.known:
            await asyncio.to_thread(self._nodes.look, monotonic())
        return self._nodes.serving()

    def _listening(self, use: Callable[[Node], Any]) -> Any:
        return use(self._nodes.serving()) if self._nodes.known else None

    def idle_subscription(self) -> Subscription | None:
        """Return an idle subscription at the node that serves the slot, if there is one."""
        found: Subscription | None = self._listening(lambda node: node.aio.idle_subscription())
        return found

    def is_subscribed(self, subscription: Subscription) -> bool:
        """Tell whether the subscription is at the node that serves the slot now."""
        return bool(self._listening(lambda node: node.aio.wire.is_subscribed(subscription)))

    def keep(self, subscription: Subscription) -> None:
        """Keep a subscription for the next waiter of this loop at that node, or end it if the slot has moved."""
        if self.is_subscribed(subscription):
            self._listening(lambda node: node.aio.keep(subscription))
        else:
            subscription.connection.unsubscribe(subscription)

    async def subscribe(self, channel: str) -> Subscription:
        """Subscribe to ``channel``, confirmed by the server. Raises ``NoPermissionError`` if that is forbidden."""
        try:
            return await (await self._node()).aio.subscribe(channel)
        except NoPermissionError:
            raise
        except (RedisError, OSError) as error:
            raise unavailable(error) from error
