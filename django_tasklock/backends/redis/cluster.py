"""A Redis Cluster: all keys are in one slot, by the hash tag of their prefix, and each request goes to the node that
serves this slot now. It is asked again after a failover, and while the slot moves.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from time import monotonic
from typing import Any

import redis
import redis.asyncio
from django.core.exceptions import ImproperlyConfigured
from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    BusyLoadingError,
    ClusterDownError,
    MovedError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from django_tasklock.backends.redis.acknowledged import Acknowledged
from django_tasklock.backends.redis.errors import is_final, serves_nobody, unavailable, was_answered
from django_tasklock.backends.redis.keys import Layout
from django_tasklock.backends.redis.location import async_pool, sync_pool
from django_tasklock.backends.redis.pool import make, throw_away
from django_tasklock.backends.redis.script import Script, packed
from django_tasklock.backends.redis.subscribers import Subscriber, Subscribers
from django_tasklock.backends.redis.wire import Wire
from django_tasklock.backends.redis.wire_async import AsyncWires
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.texts import without_password

SCHEMES = {"redis+cluster": "redis", "rediss+cluster": "rediss"}
"""The URL scheme of a cluster, and of each of its nodes."""

PATIENCE = 1.8
"""Seconds for which a request is repeated while nodes answer but cannot execute it: the slot is being moved, or a
primary has failed."""
LAST = 1.0
"""Seconds after which a request without an answer is not sent again. Each attempt may take ``location.TIMEOUT``."""
PAUSE = 0.02
"""Seconds between two attempts."""
ASKING = 0.3
"""Seconds that one node may take to report the slots; then another one is asked."""
LOOKING = 0.9
"""Seconds after which no further node is asked."""

# While a slot is being moved, some of its keys are at one node and some at the other, and a script fails in the middle
# when it comes to a missing key. So each script begins with a key that never exists, and fails before it has done
# anything. At the new node no script runs before the move is over, because an ASK is not followed.
GUARD = r"if KEYS[1] then redis.call('EXISTS', KEYS[1] .. '\0') end" + "\n"
NOT_HERE = "non local key"

Address = tuple[str, int]


def is_cluster(location: str) -> bool:
    """Tell whether ``location`` is the URL of a Redis Cluster."""
    return location.partition("://")[0] in SCHEMES


def slot_of(prefix: str) -> int:
    """Return the slot of all keys with a prefix. Raises ``ImproperlyConfigured`` if it has no hash tag."""
    tag, closed, _ = prefix.partition("{")[2].partition("}")
    if not (tag and closed):
        raise ImproperlyConfigured(
            f"TASKLOCK['KEY_PREFIX'] {prefix!r} has braces that are not a hash tag. For a Redis Cluster, write"
            " it without braces, or with a tag, as '{text}:'"
        )
    return key_slot(prefix.encode())


def urls_of(location: str) -> list[str]:
    """Return a URL for each node that ``location`` names. Raises ``ImproperlyConfigured``."""
    scheme, found, rest = location.partition("://")
    ends = min((end for mark in "/?" if (end := rest.find(mark)) >= 0), default=len(rest))
    user, at, hosts = rest[:ends].rpartition("@")
    if scheme not in SCHEMES or not found or not all(hosts.split(",")):
        raise ImproperlyConfigured(
            f"TASKLOCK['LOCATION'] {without_password(location)!r} does not name nodes of a Redis Cluster: write"
            " redis+cluster://host:port,host:port or, with TLS, rediss+cluster://..."
        )
    return [f"{SCHEMES[scheme]}://{user}{at}{host}{rest[ends:]}" for host in hosts.split(",")]


def starts_of(location: str) -> list[redis.ConnectionPool]:
    """Return a pool for each node that ``location`` names. Raises ``ImproperlyConfigured``."""
    try:
        pools = [sync_pool(url) for url in urls_of(location)]
    except (ValueError, TypeError) as error:  # its text may contain a part of the URL
        raise ImproperlyConfigured(
            f"TASKLOCK['LOCATION'] {without_password(location)!r} is not a valid URL of a Redis Cluster"
            f" ({type(error).__name__}): redis+cluster://host:port,host:port"
        ) from error
    if any(pool.connection_kwargs.get("db") for pool in pools):
        raise ImproperlyConfigured(
            f"TASKLOCK['LOCATION'] {without_password(location)!r} names a database, but a Redis Cluster has only one"
        )
    return pools


class Node:
    """A server of the cluster, and the connections to it."""

    def __init__(self, address: Address, pool: redis.ConnectionPool, layout: Layout, asynchronous: Any) -> None:
        self.address = address
        self.wire = Wire(pool)
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
        self._starts = [_address([pool.connection_kwargs.get(key) for key in ("host", "port")]) for pool in pools]
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
        connection = make(self._pool(address, socket_timeout=ASKING, socket_connect_timeout=ASKING))
        try:
            connection.send_command("CLUSTER", "SLOTS")
            found = connection.read_response()
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
            addresses = [_address(node, answering) for node in nodes]
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


def _address(node: list[Any], answering: Address = ("localhost", 6379)) -> Address:
    """Return host and port of a node. One without an address has that of the answering node."""
    host = node[0].decode() if isinstance(node[0], bytes) else node[0]
    return (answering[0] if host in (None, "", "?") else host), int(node[1] or answering[1])


def guarded(script: Script) -> Script:
    """Return the script with the guard: while its slot is being moved it fails before it has done anything."""
    return _guarded(script.body, script.count, script.keys)


@lru_cache(maxsize=256)  # by text: there are some forty
def _guarded(body: str, count: int, keys: int) -> Script:
    return Script(GUARD + body, count, keys)


class Course:
    """The attempts to execute one request. ``doubt``: an earlier attempt may have been executed."""

    def __init__(self, nodes: Nodes, began: float, again: bool) -> None:
        self._nodes = nodes
        self._began = began
        self._again = again
        self._failures = 0
        self._met = 0
        self.doubt = False
        self.looks: float | None = None
        """When (monotonic) a node failed: unless done since, the slots must be looked up again. ``None``: no need."""
        self.without: Node | None = None
        """The node that failed: it is asked for the slots last."""

    def delay_after(self, error: RedisError | OSError, node: Node | None, sent: bool) -> float:
        """Return the seconds to wait before the next attempt. Raises ``BackendUnavailable`` if there is none.

        ``sent``: whether the request may have reached ``node``.
        """
        now = monotonic()
        passed = now - self._began
        self.looks = None
        if isinstance(error, MovedError) and node is not None:
            self._within(passed, PATIENCE, error)
            self._nodes.moved(error, node)
            self._met += 1
            return 0.0 if self._met < 5 else PAUSE
        if in_transit(error):
            self._within(passed, PATIENCE, error)
            return PAUSE
        if unready(error):
            self._within(passed, PATIENCE, error)
            self.looks, self.without = now, node
            return PAUSE
        lost = sent and not was_answered(error)
        self.doubt = self.doubt or lost
        if is_final(error) or (lost and not self._again):
            raise unavailable(error, self.doubt) from error
        self._within(passed, LAST, error)
        self.looks, self.without = now, node
        self._failures += 1
        return 0.0 if self._failures == 1 else PAUSE

    def _within(self, passed: float, most: float, error: RedisError | OSError) -> None:
        if passed > most:
            raise self._over(error) from error

    def _over(self, error: RedisError | OSError) -> BackendUnavailable:
        slot = self._nodes.slot
        if isinstance(error, MovedError):  # which is an AskError to redis-py
            return BackendUnavailable(
                f"Redis refused ({type(error).__name__}: {error}); the nodes of the cluster disagree about which"
                f" node serves slot {slot}: see redis-cli --cluster check and redis-cli --cluster fix",
                doubt=self.doubt,
                down=False,
            )
        if in_transit(error):
            return BackendUnavailable(
                f"Redis refused ({type(error).__name__}: {error}); slot {slot} of the cluster is being moved, and"
                " no script can run there until that is over: redis-cli --cluster check shows unfinished moves",
                doubt=self.doubt,
                down=False,
            )
        return unavailable(error, self.doubt)


def in_transit(error: BaseException) -> bool:
    """Tell whether the error means that the slot is being moved, so that nothing was executed."""
    return isinstance(error, AskError | TryAgainError) or (isinstance(error, ResponseError) and NOT_HERE in str(error))


def unready(error: BaseException) -> bool:
    """Tell whether the node serves no clients now, or is not a primary, so that nothing was executed."""
    if isinstance(error, ReadOnlyError | ClusterDownError | BusyLoadingError) or "READONLY" in str(error):
        return True
    return isinstance(error, ResponseError) and serves_nobody(error)


class ClusterWire:
    """Runs packed scripts at the node that serves the slot, for the threads of this process."""

    def __init__(self, nodes: Nodes, acknowledged: Acknowledged | None) -> None:
        self._nodes = nodes
        self.acknowledged = acknowledged
        self.grant: Callable[[Script, bytes], tuple[Any, bool]] = self.call if acknowledged is None else self._grant

    def call(self, script: Script, tail: bytes, *, again: bool = True) -> tuple[Any, bool]:
        """Do what ``Wire.call`` does. Find the node again after a failover or a move."""
        return self._call(guarded(script), tail, again)

    def run(
        self, script: Script, keys: Sequence[str], args: Sequence[str | bytes | int] = (), *, again: bool = True
    ) -> tuple[Any, bool]:
        """Do what ``call`` does, with keys and arguments that are not encoded yet."""
        return self.call(*packed(script, keys, args), again=again)

    def _grant(self, script: Script, tail: bytes) -> tuple[Any, bool]:
        assert self.acknowledged is not None
        replies, doubt = self._call(guarded(script).and_then, tail + self.acknowledged.command, True)
        return self.acknowledged.judge(replies), doubt

    def _call(self, script: Script, tail: bytes, again: bool) -> tuple[Any, bool]:
        began, course = monotonic(), None
        while True:
            node: Node | None = None
            sent = False
            try:
                if course is not None and course.looks is not None:
                    self._nodes.look(course.looks, course.without)
                node = self._nodes.serving()
                link = node.wire.take()
                sent = True
                return node.wire.exchange(link, script, tail), course is not None and course.doubt
            except (RedisError, OSError) as error:
                course = course or Course(self._nodes, began, again)
                pause = course.delay_after(error, node, sent)
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
