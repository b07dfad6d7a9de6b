"""A Redis Cluster of the run's own: processes of the same server, whose slots and roles a test moves as it likes."""

from __future__ import annotations

import atexit
import contextlib
import signal
import socket
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import redis
from redis.exceptions import RedisError

from tests.support.redis_server import RedisServer, free_port

__all__ = ["SLOTS", "Cluster", "clustered", "of_this_run"]

SLOTS = 16384
NODE_TIMEOUT = 1000
"""Milliseconds after which the nodes take a silent one for failed."""


class Node(RedisServer):
    """One server of a cluster, its configuration in a directory that outlives it."""

    def __init__(self, directory: Path, options: Sequence[str] = (), **client: Any) -> None:
        """``options``: more of the server's; ``client``: what it takes to ask it then."""
        port = free_port()
        while not _is_free(port + 10_000):  # where the nodes talk to each other
            port = free_port()
        home = directory / str(port)
        home.mkdir()
        super().__init__(
            port,
            "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--dir", str(home),
            "--cluster-node-timeout", str(NODE_TIMEOUT), "--repl-diskless-sync-delay", "0",
            "--cluster-replica-validity-factor", "0", "--cluster-require-full-coverage", "no",
            *(option.format(port=port) for option in options),
        )  # fmt: skip
        self.client = redis.Redis(port=port, socket_timeout=10, **client)

    def answers(self) -> bool:
        """Whether it answers, also where it wants TLS and a password."""
        with contextlib.suppress(RedisError, OSError):
            return bool(self.client.ping())
        return False

    @property
    def pid(self) -> int:
        """Its process."""
        assert self.process is not None
        return self.process.pid

    @property
    def id(self) -> str:
        """What the other nodes know it by."""
        return str(self.client.execute_command("CLUSTER", "MYID").decode())

    def slots(self) -> list[tuple[int, int, int]]:
        """Return what it believes of who serves what: first slot, last slot, port of the primary."""
        return [(row[0], row[1], row[2][1]) for row in self.client.execute_command("CLUSTER", "SLOTS")]

    def view(self) -> set[tuple[str, ...]]:
        """Return what it believes of each node: identity, epoch of its configuration, slots that it serves."""
        rows = (line.split() for line in self.client.execute_command("CLUSTER", "NODES").decode().splitlines())
        return {(row[0], row[6], *(part for part in row[8:] if part[0] != "[")) for row in rows}

    def sound(self) -> bool:
        """Tell whether it serves, and knows who serves what."""
        with contextlib.suppress(RedisError):
            served = sum(last - first + 1 for first, last, _ in self.slots())
            return served == SLOTS and b"cluster_state:ok" in self.client.execute_command("CLUSTER", "INFO")
        return False


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError):  # taken, or no port at all
            return False
    return True


class Cluster:
    """Some primaries, each with as many replicas as were asked for."""

    def __init__(self, primaries: list[Node], replicas: list[Node]) -> None:
        self.primaries = primaries
        self.replicas = replicas
        """The first of the first primary, then of the second, and so on."""

    @property
    def nodes(self) -> list[Node]:
        """All of them."""
        return [*self.primaries, *self.replicas]

    @property
    def url(self) -> str:
        """Where to start from, as ``LOCATION`` has it."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.primaries)

    def serving(self, slot: int) -> Node:
        """Return who serves a slot, as most of the others see it."""
        seen: list[int] = []
        for node in self.nodes:
            with contextlib.suppress(RedisError, OSError):
                seen += [port for first, last, port in node.slots() if first <= slot <= last]
        port = max(set(seen), key=seen.count)
        return next(node for node in self.nodes if node.port == port)

    def flush(self) -> None:
        """Lose all data."""
        for node in self.primaries:
            with contextlib.suppress(redis.ResponseError):  # it is a replica now
                node.client.flushall()

    def begin_move(self, slot: int, to: Node) -> Node:
        """Put a slot in transit, as ``redis-cli --cluster reshard`` does; return whence.

        It waits until the nodes have heard of the move before. One that has not yet heard of another's epoch gives
        its own move too low a one, and Redis 7.0 never recovers: the slot's new node says it is served by the old one.
        """
        from tests.support.stores import eventually

        eventually(lambda: all(node.view() == to.view() for node in self.primaries), 30)
        source = self.serving(slot)
        to.client.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.client.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", to.id)
        return source

    def move_keys(self, slot: int, source: Node, to: Node, most: int = 1_000_000) -> int:
        """Move keys of a slot in transit; return how many."""
        keys = source.client.execute_command("CLUSTER", "GETKEYSINSLOT", slot, most)
        if keys:
            source.client.execute_command("MIGRATE", "127.0.0.1", to.port, "", 0, 5000, "KEYS", *keys)
        return len(keys)

    def end_move(self, slot: int, to: Node) -> None:
        """Give a slot in transit to where its keys are, and let everybody know."""
        identity = to.id
        for node in sorted(self.primaries, key=lambda node: node is not to):
            node.client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", identity)

    def move(self, slot: int, to: Node) -> None:
        """Move a slot, with all that is in it."""
        source = self.begin_move(slot, to)
        if source is not to:
            while self.move_keys(slot, source, to, 100):
                pass
        self.end_move(slot, to)

    def stop(self) -> None:
        """End all of them, those that were stopped as well."""
        for node in self.nodes:
            if node.process is not None and node.process.poll() is None:
                node.process.send_signal(signal.SIGCONT)
            node.client.close()
            node.stop()


@contextlib.contextmanager
def clustered(
    directory: Path, primaries: int = 3, replicas: int = 0, options: Sequence[str] = (), **client: Any
) -> Iterator[Cluster]:
    """Start ``primaries`` with the slots shared out among them, each with ``replicas``; stop them afterwards.

    ``options``: more of each server's, ``{port}`` is its own; ``client``: what it takes to ask it then.
    """
    from tests.support.stores import eventually

    first = [Node(directory, options, **client) for _ in range(primaries)]
    others = [Node(directory, options, **client) for _ in range(primaries * replicas)]
    cluster = Cluster(first, others)
    try:
        for node in cluster.nodes:
            node.start()
        for number, node in enumerate(cluster.nodes):
            node.client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for number, node in enumerate(first):
            share = range(number * SLOTS // primaries, (number + 1) * SLOTS // primaries)
            node.client.execute_command("CLUSTER", "ADDSLOTS", *share)
        for node in cluster.nodes[1:]:
            first[0].client.execute_command("CLUSTER", "MEET", "127.0.0.1", node.port)
        eventually(lambda: all(node.sound() for node in first), 30)
        for number, node in enumerate(others):
            primary = first[number // replicas].id
            eventually(
                lambda node=node, primary=primary: primary in str(node.client.execute_command("CLUSTER", "NODES")), 30
            )
            node.client.execute_command("CLUSTER", "REPLICATE", primary)
        for node in others:
            eventually(lambda node=node: node.client.info("replication").get("master_link_status") == "up", 30)
        eventually(lambda: all(node.sound() for node in cluster.nodes), 30)
        yield cluster
    finally:
        cluster.stop()


@cache
def of_this_run() -> Cluster:
    """Return the cluster of this process's tests, of three primaries: made on first use, for tests that harm none."""
    made = contextlib.ExitStack()
    atexit.register(made.close)
    directory = made.enter_context(tempfile.TemporaryDirectory())
    return made.enter_context(clustered(Path(directory)))
