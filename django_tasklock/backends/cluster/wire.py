"""Requests to the nodes that serve slots: one connection per node and request; several nodes are asked at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, NamedTuple

from redis.exceptions import MovedError, NoScriptError, RedisError

from django_tasklock.backends.cluster.course import Course, guarded
from django_tasklock.backends.cluster.location import Address
from django_tasklock.backends.cluster.nodes import Node, Nodes
from django_tasklock.backends.redis.acknowledged import Acknowledged
from django_tasklock.backends.redis.errors import unavailable
from django_tasklock.backends.redis.pool import throw_away
from django_tasklock.backends.redis.script import Script, packed
from django_tasklock.backends.redis.subscribers import Subscriber
from django_tasklock.backends.redis.wire import Link
from django_tasklock.exceptions import BackendUnavailable

TOGETHER = 128
"""The most requests in one packet to a node: the node keeps all of them in its memory."""


class SlotRequest(NamedTuple):
    """A script to run at the node that serves a slot."""

    slot: int
    script: Script
    tail: bytes


_Failed = list[tuple[Node | None, int]]


class ClusterWire:
    """Runs packed scripts for the threads of this process, each at the node that serves its slot."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes

    def call(self, slot: int, script: Script, tail: bytes, *, again: bool = True) -> tuple[Any, bool]:
        """Do what ``Wire.call`` does, at the node that serves the slot. Find it again after a failover or a move."""
        began, course = monotonic(), None
        while True:
            node: Node | None = None
            sent = False
            try:
                if course is not None and course.looks is not None:
                    self.nodes.look(course.looks, course.without)
                node = self.nodes.of(slot)
                link = node.wire.take()
                sent = True
                return node.wire.exchange(link, script, tail), course is not None and course.doubt
            except (RedisError, OSError) as error:
                course = course or Course(self.nodes, slot, began, again)
                pause = course.delay_after(error, node, sent)
            if node is not None and course.looks is not None:
                node.wire.clear()  # idle connections are as old as the one that failed
            if pause:
                time.sleep(pause)

    def run(
        self,
        slot: int,
        script: Script,
        keys: Sequence[str],
        args: Sequence[str | bytes | int] = (),
        *,
        again: bool = True,
    ) -> tuple[Any, bool]:
        """Do what ``call`` does, with keys and arguments that are not encoded yet."""
        return self.call(slot, *packed(script, keys, args), again=again)

    def call_all(self, asks: Sequence[SlotRequest], *, patient: bool = True) -> list[Any]:
        """Run scripts at all nodes at once. Return their replies, or a ``BackendUnavailable`` in place of each
        missing one.

        A script may be run twice. ``patient``: repeat requests to nodes that do not answer; otherwise return the
        answers of the other nodes without waiting for that.
        """
        began = monotonic()
        replies: list[Any] = [_Unanswered()] * len(asks)
        going: dict[Node | None, list[int]] = {}
        for number, ask in enumerate(asks):
            going.setdefault(self._serving(ask.slot), []).append(number)
        failed: _Failed = []
        while going:
            unknown: dict[Node | None, list[int]] = {}
            parts = [(node, numbers[:TOGETHER]) for node, numbers in going.items()]
            links = [self._send(node, [asks[number] for number in numbers]) for node, numbers in parts]
            for (node, numbers), link in zip(parts, links, strict=True):
                self._read(node, link, numbers, replies)
                going[node] = going[node][TOGETHER:]
                for number in numbers:
                    if isinstance(replies[number], NoScriptError):
                        unknown.setdefault(node, []).append(number)
                    elif isinstance(replies[number], Exception):
                        failed.append((node, number))
            for node, numbers in unknown.items():  # one request loads the script for the others
                made = {asks[number].script.sha: number for number in reversed(numbers)}
                for number in made.values():
                    replies[number] = self._one(asks[number])
                going[node] += [number for number in numbers if number not in made.values()]
            going = {node: numbers for node, numbers in going.items() if numbers}
        if not patient:
            failed = self._worth_it(asks, replies, failed, began)
        self._one_by_one(asks, replies, failed)
        return replies

    def _worth_it(self, asks: Sequence[SlotRequest], replies: list[Any], failed: _Failed, began: float) -> _Failed:
        """Return the failed requests that are worth repeating: another node serves their slots now."""
        if any(isinstance(replies[number], _Unanswered) for _, number in failed):
            with suppress(RedisError, OSError):
                self.nodes.look(began, next((node for node, _ in failed if node is not None), None))
        found = []
        for node, number in failed:
            error = replies[number]
            if isinstance(error, MovedError) or self._serving(asks[number].slot) not in (None, node):
                found.append((node, number))
            else:
                said = f"{node} does not answer" if isinstance(error, _Unanswered) else str(error)
                replies[number] = BackendUnavailable(f"Redis could not be asked ({said})")
        return found

    def call_each(self, script: Script, tail: bytes) -> list[Any]:
        """Run a script without keys at each primary. Raises ``BackendUnavailable`` if one does not answer."""
        began = monotonic()
        try:
            try:
                return [node.wire.call(script, tail)[0] for node in self.nodes.primaries()]
            except BackendUnavailable:
                self.nodes.look(began)
                return [node.wire.call(script, tail)[0] for node in self.nodes.primaries()]
        except (RedisError, OSError) as error:
            raise unavailable(error) from error

    def _serving(self, slot: int) -> Node | None:
        try:
            return self.nodes.of(slot)
        except (RedisError, OSError):
            return None

    def _send(self, node: Node | None, asks: list[SlotRequest]) -> Link | None:
        if node is None:
            return None
        link = None
        try:
            link = node.wire.take()
            link.send(b"".join([guarded(ask.script).by_digest + ask.tail for ask in asks]))
        except BaseException as error:
            if link is not None:
                throw_away(link.connection)
            if isinstance(error, RedisError | OSError):
                return None
            raise
        return link

    def _read(self, node: Node | None, link: Link | None, numbers: list[int], replies: list[Any]) -> None:
        if node is None or link is None:
            return
        try:
            for number in numbers:
                replies[number] = link.read()
        except BaseException as error:
            throw_away(link.connection)
            if not isinstance(error, RedisError | OSError):
                raise
        else:
            node.wire.keep(link)

    def _one_by_one(self, asks: Sequence[SlotRequest], replies: list[Any], failed: _Failed) -> None:
        """Repeat failed requests, one by one. After one without success, those of the same node are not repeated."""
        hopeless: dict[Node | None, BackendUnavailable] = {}
        for node, number in failed:
            replies[number] = reply = hopeless.get(node) or self._one(asks[number])
            if isinstance(reply, BackendUnavailable):
                hopeless[node] = reply

    def _one(self, ask: SlotRequest) -> Any:
        try:
            return self.call(ask.slot, guarded(ask.script), ask.tail)[0]
        except BackendUnavailable as error:
            return error


class _Unanswered(Exception):
    """Stands in the place of a missing reply."""


class SlotWire:
    """Runs packed scripts at the node that serves one slot, for the threads of this process."""

    def __init__(self, wire: ClusterWire, slot: int, acknowledged: Acknowledged | None) -> None:
        self._wire = wire
        self._slot = slot
        self.acknowledged = acknowledged
        self.grant: Callable[[Script, bytes], tuple[Any, bool]] = self.call if acknowledged is None else self._grant

    def call(self, script: Script, tail: bytes, *, again: bool = True) -> tuple[Any, bool]:
        """Do what ``Wire.call`` does."""
        return self._wire.call(self._slot, guarded(script), tail, again=again)

    def run(
        self, script: Script, keys: Sequence[str], args: Sequence[str | bytes | int] = (), *, again: bool = True
    ) -> tuple[Any, bool]:
        """Do what ``call`` does, with keys and arguments that are not encoded yet."""
        return self.call(*packed(script, keys, args), again=again)

    def _grant(self, script: Script, tail: bytes) -> tuple[Any, bool]:
        assert self.acknowledged is not None
        replies, doubt = self._wire.call(self._slot, guarded(script).and_then, tail + self.acknowledged.command)
        return self.acknowledged.judge(replies), doubt


class SlotSubscribers:
    """Subscriptions on which this process's threads wait, at the node that serves one slot.

    A publish counts the subscribers at the node that executes it, and that is the node that serves the lock's slot.
    """

    def __init__(self, nodes: Nodes, slot: int) -> None:
        self._nodes = nodes
        self._slot = slot

    def idle(self) -> Subscriber | None:
        """Return an idle connection that is still open, if there is one."""
        try:
            return self._nodes.of(self._slot).subscribers.idle()
        except (RedisError, OSError):  # the request that follows will raise the error
            return None

    def new(self, channel: str = "") -> Subscriber:
        """Return a new connection, its subscription confirmed by the server."""
        return self._node().subscribers.new(channel)

    def is_subscribed(self, subscriber: Subscriber) -> bool:
        """Tell whether the subscription is at the node that serves the slot now."""
        try:
            return _address(subscriber) == self._nodes.of(self._slot).address
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
            return self._nodes.of(self._slot)
        except (RedisError, OSError) as error:
            raise unavailable(error) from error


def _address(subscriber: Subscriber) -> Address:
    return str(subscriber.connection.host), int(subscriber.connection.port)
