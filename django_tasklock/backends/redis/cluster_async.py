"""Requests of coroutines to the node that serves the slot: ``backends.redis.wire_async`` for each event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any

from redis.exceptions import NoPermissionError, NoScriptError, RedisError

from django_tasklock.backends.redis.acknowledged import Acknowledged
from django_tasklock.backends.redis.cluster import ClusterSubscribers, ClusterWire, Course, Node, Nodes, guarded
from django_tasklock.backends.redis.errors import unavailable
from django_tasklock.backends.redis.keys import Layout
from django_tasklock.backends.redis.script import Script
from django_tasklock.backends.redis.shared import Subscription


class ClusterConnections:
    """The connections of a ``RedisBackend`` to a Redis Cluster."""

    def __init__(self, location: str, layout: Layout, replicas: int = 0) -> None:
        acknowledged = Acknowledged(replicas) if replicas else None
        self._nodes = Nodes(location, layout)
        self.wire = ClusterWire(self._nodes, acknowledged)
        self.subscribers = ClusterSubscribers(self._nodes)
        self.aio = ClusterAio(self._nodes, acknowledged)

    def close(self) -> None:
        """Close the connections of the threads, and those in use when they are put back."""
        self._nodes.close()


class ClusterAio:
    """Runs packed scripts, and subscribes, at the node that serves the slot, for the coroutines of this process."""

    def __init__(self, nodes: Nodes, acknowledged: Acknowledged | None) -> None:
        self._nodes = nodes
        self.acknowledged = acknowledged
        self.grant: Callable[[Script, bytes], Coroutine[Any, Any, tuple[Any, bool]]]
        self.grant = self.call if acknowledged is None else self._grant

    def call(self, script: Script, tail: bytes, *, again: bool = True) -> Coroutine[Any, Any, tuple[Any, bool]]:
        """Do what ``ClusterWire.call`` does, for coroutines."""
        return self._call(guarded(script), tail, again)

    async def _grant(self, script: Script, tail: bytes) -> tuple[Any, bool]:
        assert self.acknowledged is not None
        replies, doubt = await self._call(guarded(script).and_then, tail + self.acknowledged.command, True)
        return self.acknowledged.judge(replies), doubt

    async def _call(self, script: Script, tail: bytes, again: bool) -> tuple[Any, bool]:
        began, course = monotonic(), None
        while True:
            node: Node | None = None
            sent = False
            try:
                if course is not None and course.looks is not None:
                    await asyncio.to_thread(self._nodes.look, course.looks, course.without)
                node = await self._node()
                asking = await node.aio.wire.asking()
                sent = True
                ask = asking.ask_both if script.followed else asking.ask
                try:
                    reply = await ask(script.by_digest + tail)
                except NoScriptError:
                    reply = await ask(script.by_body + tail)
                return reply, course is not None and course.doubt
            except (RedisError, OSError) as error:
                course = course or Course(self._nodes, began, again)
                pause = course.delay_after(error, node, sent)
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
