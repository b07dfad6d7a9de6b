"""A Redis Cluster: all keys are in one slot, by the hash tag of their prefix, and each request goes to the node that
serves this slot now. It is sent again after a failover, and while the slot moves.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from functools import lru_cache
from time import monotonic
from typing import Any, NamedTuple

import redis
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

from django_tasklock.backends.redis.client import Client, ask, connect, throw_away
from django_tasklock.backends.redis.errors import is_final, serves_nobody, unavailable, was_answered
from django_tasklock.backends.redis.location import pool_of
from django_tasklock.backends.redis.script import Script
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


class Node(NamedTuple):
    """A server of the cluster, and the connections to it."""

    address: Address
    client: Client

    def __str__(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"


class ClusterClient:
    """Runs scripts at the node that serves the slot of a prefix, for the threads of this process. See ``Client``."""

    def __init__(self, location: str, prefix: str) -> None:
        self.slot = slot_of(prefix)
        pools = starts_of(location)
        self._kind, self._options = pools[0].connection_class, pools[0].connection_kwargs
        self._starts = [address_of([pool.connection_kwargs.get(key) for key in ("host", "port")]) for pool in pools]
        self._nodes: list[Address] = []
        self._serving: Node | None = None
        self._looking, self._changing = threading.Lock(), threading.Lock()
        self._looked = 0.0
        self._closed = False

    def run(
        self, script: Script, keys: Sequence[str], args: Sequence[str | bytes | int] = (), *, again: bool = True
    ) -> tuple[Any, bool]:
        """Do what ``Client.run`` does. Find the node again after a failover or a move."""
        script = _guarded(script)
        began, attempts, doubt = monotonic(), 0, False
        looks: float | None = None  # when a node failed: unless done since, the slots must be looked up again
        failed: Node | None = None
        while True:
            node: Node | None = None
            sent = False
            try:
                if looks is not None:
                    self.look(looks, failed)
                node = self.serving()
                connection = node.client.take()
                sent = True
                return node.client.exchange(connection, script, keys, args), doubt
            except (RedisError, OSError) as error:
                now = monotonic()
                refused = isinstance(error, MovedError) or in_transit(error) or unready(error)
                if not refused:
                    lost = sent and not was_answered(error)
                    doubt = doubt or lost
                    if is_final(error) or (lost and not again):
                        raise unavailable(error, doubt) from error
                if now - began > (PATIENCE if refused else LAST):
                    raise self._given_up(error, doubt) from error
                looks = None
                if isinstance(error, MovedError) and node is not None:
                    self._use((str(error.host) or node.address[0], int(error.port)))
                elif not in_transit(error):
                    looks, failed = now, node
            if node is not None and looks is not None:
                node.client.clear()  # idle connections are as old as the one that failed
            attempts += 1
            if attempts > 1:
                time.sleep(PAUSE)

    def _given_up(self, error: RedisError | OSError, doubt: bool) -> BackendUnavailable:
        if isinstance(error, MovedError):  # which is an AskError to redis-py
            why = (
                f"the nodes of the cluster disagree about which node serves slot {self.slot}: see redis-cli --cluster"
                " check and redis-cli --cluster fix"
            )
        elif in_transit(error):
            why = (
                f"slot {self.slot} of the cluster is being moved, and no script can run there until that is over:"
                " redis-cli --cluster check shows unfinished moves"
            )
        else:
            return unavailable(error, doubt)
        return BackendUnavailable(f"Redis refused ({type(error).__name__}: {error}); {why}", doubt=doubt, down=False)

    def connect(self) -> Any:
        """Return a new connection of redis-py's, for a subscription: a script sees the subscribers at its node only.

        Raises redis-py's errors, and ``OSError``.
        """
        return self.serving().client.connect()

    def serving(self) -> Node:
        """Return the node that serves the slot. Raises redis-py's errors if no node reports one."""
        if self._serving is None:
            self.look(monotonic())
        node = self._serving
        if node is None:
            raise ClusterDownError(f"CLUSTERDOWN no node serves slot {self.slot}")
        return node

    def look(self, since: float, without: Node | None = None) -> None:
        """Ask a node for the slots, unless one was asked after ``since`` (monotonic). Raises redis-py's errors.

        ``without``: the node that is asked last, because it has just failed.
        """
        with self._looking:
            if self._looked > since:
                return
            ends, trouble = monotonic() + LOOKING, None
            last = None if without is None else without.address
            for address in sorted(dict.fromkeys([*self._nodes, *self._starts]), key=lambda one: one == last):
                try:
                    self._take_over(address, self._ask(address))
                    return
                except (RedisError, OSError) as error:
                    if trouble is None or (serves_nobody(trouble) and not serves_nobody(error)):
                        trouble = error
                if monotonic() > ends:
                    break
            raise trouble or redis.ConnectionError("no node of the cluster is known")

    def _ask(self, address: Address) -> list[Any]:
        connection = connect(self._pool(address, socket_timeout=ASKING, socket_connect_timeout=ASKING))
        try:
            found: list[Any] = ask(connection, "CLUSTER", "SLOTS")
        finally:
            throw_away(connection)
        if not found:
            raise ClusterDownError(f"CLUSTERDOWN {address[0]}:{address[1]} reports no slots")
        return found

    def _take_over(self, answering: Address, ranges: list[Any]) -> None:
        """Take what ``answering`` reports: for each range of slots a primary and its replicas."""
        primary = None
        found: list[Address] = []
        for first, last, *nodes in ranges:
            addresses = [address_of(node, answering) for node in nodes]
            found += addresses
            if first <= self.slot <= last:
                primary = addresses[0]
        self._nodes = found
        self._use(primary)
        self._looked = monotonic()

    def _use(self, address: Address | None) -> None:
        with self._changing:
            before = self._serving
            if before is not None and before.address == address:
                return
            self._serving = None if address is None else Node(address, Client(self._pool(address)))
            if before is not None:
                before.client.close()
            if self._closed:
                self._close()

    def _pool(self, address: Address, **more: Any) -> redis.ConnectionPool:
        options = {**self._options, "host": address[0], "port": address[1], **more}
        return redis.ConnectionPool(connection_class=self._kind, **options)

    def close(self) -> None:
        """Close every idle connection, and those in use when they are put back. Each later request opens one."""
        with self._changing:
            self._closed = True
            self._close()

    def _close(self) -> None:
        if self._serving is not None:
            self._serving.client.close()


@lru_cache(maxsize=256)  # there are some forty scripts
def _guarded(script: Script) -> Script:
    """Return the script with the guard: while its slot is being moved it fails before it has done anything."""
    return Script(GUARD + script.body)


def in_transit(error: BaseException) -> bool:
    """Tell whether the error means that the slot is being moved, so that nothing was executed."""
    return isinstance(error, AskError | TryAgainError) or (isinstance(error, ResponseError) and NOT_HERE in str(error))


def unready(error: BaseException) -> bool:
    """Tell whether the node serves no clients now, or is not a primary, so that nothing was executed."""
    if isinstance(error, ReadOnlyError | ClusterDownError | BusyLoadingError) or "READONLY" in str(error):
        return True
    return isinstance(error, ResponseError) and serves_nobody(error)


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
    urls = urls_of(location)
    try:
        pools = [pool_of(url) for url in urls]
    except ImproperlyConfigured as error:
        raise ImproperlyConfigured(
            f"TASKLOCK['LOCATION'] {without_password(location)!r} is not a valid URL of a Redis Cluster"
            f" ({type(error.__cause__).__name__}): redis+cluster://host:port,host:port"
        ) from error
    if any(pool.connection_kwargs.get("db") for pool in pools):
        raise ImproperlyConfigured(
            f"TASKLOCK['LOCATION'] {without_password(location)!r} names a database, but a Redis Cluster has only one"
        )
    return pools


def address_of(node: list[Any], answering: Address = ("localhost", 6379)) -> Address:
    """Return host and port of a node. One without an address has that of the answering node."""
    host = node[0].decode() if isinstance(node[0], bytes) else node[0]
    return (answering[0] if host in (None, "", "?") else host), int(node[1] or answering[1])
