"""The nodes of a cluster, the slots that each serves as far as this process knows, and the connections to each."""

from __future__ import annotations

import threading
from bisect import bisect_right
from contextlib import suppress
from functools import partial
from time import monotonic

import redis
from redis.exceptions import MovedError, RedisError

from django_tasklock.backends.cluster.location import Address, Range, Source, ranges_in
from django_tasklock.backends.redis.keys import Layout
from django_tasklock.backends.redis.pool import make, throw_away
from django_tasklock.backends.redis.subscribers import Subscribers
from django_tasklock.backends.redis.wire import Link, Wire
from django_tasklock.backends.redis.wire_async import AsyncWires

ASKING = 0.3
"""Seconds that one node may take to report the slots; then another one is asked."""
LOOKING = 0.9
"""Seconds after which no further node is asked."""
SLOTS = b"*2\r\n$7\r\nCLUSTER\r\n$5\r\nSLOTS\r\n"


class Node:
    """A server of the cluster, and the connections to it."""

    def __init__(self, source: Source, address: Address, layout: Layout) -> None:
        self.address = address
        pool = source.pool(address)
        self.wire = Wire(pool)
        self.subscribers = Subscribers(pool, layout)
        self.aio = AsyncWires(partial(source.async_pool, address))

    def close(self) -> None:
        """Close the connections of threads, and those in use when they are put back."""
        self.subscribers.close()
        self.wire.close()

    def __str__(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"


class Nodes:
    """The nodes of a cluster. Methods may be called from any thread."""

    def __init__(self, source: Source, layout: Layout) -> None:
        self._source = source
        self._layout = layout
        self._looking = threading.Lock()
        self._known: dict[Address, Node] = {}
        self._ranges: list[Range] = []
        self._firsts: list[int] = []
        self._by_slot: dict[int, Node] = {}
        self._looked = 0.0
        self._stale = False
        self._closed = False

    @property
    def known(self) -> bool:
        """Whether a node has reported the slots."""
        return bool(self._ranges)

    def of(self, slot: int) -> Node:
        """Return the node that serves a slot. Raises redis-py's errors if no node reports one."""
        node = self._by_slot.get(slot)
        if node is None:
            if not self._ranges:
                self.look(monotonic())
            found = self._ranges[bisect_right(self._firsts, slot) - 1] if slot >= min(self._firsts) else None
            if found is None or slot > found.last:
                raise redis.exceptions.ClusterDownError(f"CLUSTERDOWN no node serves slot {slot}")
            node = self._by_slot[slot] = self._at(found.primary)
        return node

    def primaries(self) -> list[Node]:
        """Return the nodes that serve slots. Raises redis-py's errors if no node reports them."""
        if self._stale or not self._ranges:
            self.look(monotonic())
        return [self._at(address) for address in dict.fromkeys(part.primary for part in self._ranges)]

    def moved(self, slot: int, error: MovedError, by: Node) -> Node:
        """Record the node that serves a slot now, from a MOVED error of node ``by``, and return it."""
        address = str(error.host) or by.address[0], int(error.port)
        node = self._by_slot[slot] = self._at(address)
        self._stale = True
        return node

    def look(self, since: float, without: Node | None = None) -> None:
        """Ask a node for the slots, unless one was asked after ``since`` (monotonic). Raises redis-py's errors.

        ``without``: the node that is asked last, because it has just failed.
        """
        with self._looking:
            if self._looked > since:
                return
            ends, trouble = monotonic() + LOOKING, None
            for address in self._candidates(without):
                try:
                    self._take_over(self._ask(address))
                    return
                except (RedisError, OSError) as error:
                    trouble = trouble or error
                if monotonic() > ends:
                    break
            raise trouble or redis.ConnectionError("no node of the cluster is known")

    def _candidates(self, without: Node | None) -> list[Address]:
        found = [part.primary for part in self._ranges]
        found += [replica for part in self._ranges for replica in part.replicas]
        found += self._source.starts
        last = None if without is None else without.address
        return [*(address for address in dict.fromkeys(found) if address != last), *([last] if last else [])]

    def _ask(self, address: Address) -> list[Range]:
        connection = make(self._source.pool(address, ASKING))
        try:
            found = ranges_in(Link(connection).ask(SLOTS), address)
        finally:
            throw_away(connection)
        if not found:
            raise redis.exceptions.ClusterDownError(f"CLUSTERDOWN {address[0]}:{address[1]} reports no slots")
        return found

    def _take_over(self, ranges: list[Range]) -> None:
        ranges.sort()
        self._ranges, self._firsts = ranges, [part.first for part in ranges]
        self._by_slot = {}
        self._looked, self._stale = monotonic(), False
        primaries = {part.primary for part in ranges}
        for address in list(self._known):
            if address not in primaries:
                self._known.pop(address).close()

    def _at(self, address: Address) -> Node:
        node = self._known.get(address)
        if node is None:
            node = self._known.setdefault(address, Node(self._source, address, self._layout))
            if self._closed:
                node.close()
        return node

    def close(self) -> None:
        """Close the connections of threads at all nodes, and those in use when they are put back."""
        self._closed = True
        for node in list(self._known.values()):
            with suppress(RedisError, OSError):
                node.close()
