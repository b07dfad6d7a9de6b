"""A primary, its replica and the Sentinel that watches them: three processes of our own."""

from __future__ import annotations

import atexit
import contextlib
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import redis
from redis.sentinel import MasterNotFoundError, Sentinel

from tests.support.cable import Cable
from tests.support.redis_server import RedisServer, free_port

__all__ = ["SERVICE", "Watched", "of_this_run", "watched"]

SERVICE = "locks"


class Watched:
    """Two servers, one of them primary, as Sentinel sees them."""

    def __init__(self, servers: tuple[RedisServer, RedisServer], sentinel: RedisServer, cable: Cable) -> None:
        self.servers = servers
        self.cable = cable
        """Through it the second server hears of what is written to the first."""
        self.sentinel = redis.Redis(port=sentinel.port)
        self._clients = Sentinel([("127.0.0.1", sentinel.port)])
        self.port = sentinel.port

    def url(self, database: int = 0) -> str:
        """Where locks find the primary."""
        return f"redis+sentinel://127.0.0.1:{self.port}/{SERVICE}/{database}"

    def primary_port(self) -> int:
        """Where Sentinel sends writers; in the middle of a failover, where it sends them afterwards."""
        from tests.support.stores import eventually

        return eventually(self._found, 60)

    def _found(self) -> int:
        with contextlib.suppress(MasterNotFoundError):
            return int(self._clients.discover_master(SERVICE)[1])
        return 0

    def primary(self, db: int = 0) -> redis.Redis:
        """That server, asked directly."""
        return redis.Redis(port=self.primary_port(), db=db)

    def replica(self, db: int = 0) -> redis.Redis:
        """The other one."""
        primary = self.primary_port()
        (port,) = (server.port for server in self.servers if server.port != primary)
        return redis.Redis(port=port, db=db)

    def fail_over(self) -> None:
        """Make the replica the primary, and the primary a replica whose connections stay open."""
        from tests.support.stores import eventually

        with self.primary() as old:
            before = self.primary_port()
            eventually(self._begun, 30)
            eventually(lambda: self.primary_port() != before, 60)
            with self.primary() as new:
                eventually(lambda: new.role()[0] == b"master", 60)
            old.execute_command("REPLICAOF", "127.0.0.1", str(self.primary_port()))  # Sentinel takes its time for that

    def _begun(self) -> bool:
        with contextlib.suppress(redis.ResponseError):  # no good replica yet: it has not heard of it
            return bool(self._ask("FAILOVER"))
        return False

    def _ask(self, question: str) -> Any:
        # Not by redis-py's methods for it, which differ by version, and are broken in one of them.
        return self.sentinel.execute_command("SENTINEL", question, SERVICE)


@contextlib.contextmanager
def watched(directory: Path, *, down_after: int = 120_000) -> Iterator[Watched]:
    """Start them, wait until Sentinel knows both servers; stop them afterwards.

    ``down_after``: milliseconds of silence after which the primary is taken for dead. By default it fails over when it
    is told to, and not on a slow machine.
    """
    from tests.support.stores import eventually

    with contextlib.ExitStack() as stack:
        servers: list[RedisServer] = []
        first = free_port()
        cable = stack.enter_context(Cable(first))
        for role in ("one", "two"):
            (directory / role).mkdir()
            options = ["--dir", str(directory / role), "--repl-diskless-sync-delay", "0"]
            if servers:
                options += ["--replicaof", "127.0.0.1", str(cable.port)]
            servers.append(stack.enter_context(RedisServer(None if servers else first, *options)))
        config = directory / "sentinel.conf"
        port = free_port()
        config.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {directory}\n"
            f"sentinel monitor {SERVICE} 127.0.0.1 {servers[0].port} 1\n"
            f"sentinel down-after-milliseconds {SERVICE} {down_after}\n"
            f"sentinel failover-timeout {SERVICE} 60000\n"  # for as long it leaves the replica its cable
        )
        sentinel = stack.enter_context(RedisServer(port, sentinel=config))
        found = Watched((servers[0], servers[1]), sentinel, cable)
        eventually(lambda: found._ask("REPLICAS"), 30)
        with found.replica() as replica:
            eventually(lambda: replica.info("replication")["master_link_status"] == "up", 30)
        yield found
        for client in (found.sentinel, *found._clients.sentinels):
            client.close()


@cache
def of_this_run() -> Watched:
    """Those that this process starts when it first asks for them, and stops at its end."""
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="tasklock-sentinel-"))
    return stack.enter_context(watched(Path(directory)))
