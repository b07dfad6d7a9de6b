"""A primary, its replica and the Sentinel that watches them: three processes of our own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis

from tests.support.redis_server import RedisServer, free_port
from tests.support.stores import eventually

__all__ = ["SERVICE", "Watched", "watched"]

SERVICE = "locks"


class Watched:
    """Two servers, one of them primary, as Sentinel sees them."""

    def __init__(self, servers: tuple[RedisServer, RedisServer], sentinel: RedisServer) -> None:
        self.servers = servers
        self.sentinel = redis.Redis(port=sentinel.port)
        self.port = sentinel.port

    def primary_port(self) -> int:
        """Where Sentinel sends writers now."""
        _, port = self._ask("GET-MASTER-ADDR-BY-NAME")
        return int(port)

    def primary(self, db: int = 0) -> redis.Redis:
        """That server, asked directly."""
        return redis.Redis(port=self.primary_port(), db=db)

    def replica(self, db: int = 0) -> redis.Redis:
        """The other one."""
        primary = self.primary_port()
        (port,) = (server.port for server in self.servers if server.port != primary)
        return redis.Redis(port=port, db=db)

    def fail_over(self) -> None:
        """Make the replica the primary; returns when the old primary has become a replica."""
        old = self.primary_port()
        eventually(self._begun, 30)
        eventually(lambda: self.primary_port() != old, 60)
        eventually(lambda: _role(self.primary_port()) == b"master", 60)
        eventually(lambda: _role(old) == b"slave", 60)

    def _begun(self) -> bool:
        with contextlib.suppress(redis.ResponseError):  # no good replica yet: it has not heard of it
            return bool(self._ask("FAILOVER"))
        return False

    def _ask(self, question: str) -> Any:
        # Not by redis-py's methods for it, which differ by version, and are broken in one.
        return self.sentinel.execute_command("SENTINEL", question, SERVICE)


def _role(port: int) -> bytes | None:
    with contextlib.suppress(redis.ConnectionError), redis.Redis(port=port) as client:
        return bytes(client.role()[0])
    return None


@contextlib.contextmanager
def watched(directory: Path) -> Iterator[Watched]:
    """Start them, wait until Sentinel knows both servers; stop them afterwards."""
    with contextlib.ExitStack() as stack:
        servers = []
        for role in ("one", "two"):
            (directory / role).mkdir()
            options = ["--dir", str(directory / role), "--repl-diskless-sync-delay", "0"]
            if servers:
                options += ["--replicaof", "127.0.0.1", str(servers[0].port)]
            servers.append(stack.enter_context(RedisServer(None, *options)))
        config = directory / "sentinel.conf"
        port = free_port()
        config.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {directory}\n"
            f"sentinel monitor {SERVICE} 127.0.0.1 {servers[0].port} 1\n"
            f"sentinel down-after-milliseconds {SERVICE} 120000\n"  # it fails over when told, not when a machine is slow
            f"sentinel failover-timeout {SERVICE} 10000\n"
        )
        sentinel = stack.enter_context(RedisServer(port, sentinel=config))
        found = Watched((servers[0], servers[1]), sentinel)
        eventually(lambda: found._ask("REPLICAS"), 30)
        eventually(lambda: redis.Redis(port=servers[1].port).info("replication")["master_link_status"] == "up", 30)
        yield found
        found.sentinel.close()
