"""A Redis of our own, and what it has done: time on its processor, round trips."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from tests.support.redis_server import RedisServer

__all__ = ["Server", "one_cpu", "running_server"]


class Server:
    """A running server, and a connection of its own to it, which asks for nothing while others are measured."""

    def __init__(self, url: str, pid: int) -> None:
        self.url = url
        self.pid = pid
        self.client: Any = redis.Redis.from_url(url)
        self._asked = 0

    def pin(self, cpus: set[int]) -> None:
        """Let its command thread run on these only."""
        os.sched_setaffinity(self.pid, cpus)

    def cpu_time(self) -> float:
        """Seconds that its command thread has used."""
        nanoseconds = Path(f"/proc/{self.pid}/task/{self.pid}/schedstat").read_text(encoding="ascii").split()[0]
        return int(nanoseconds) / 1e9

    def trips(self) -> int:
        """Round trips so far: reads from the sockets of clients. Without those of this question."""
        self._asked += 1
        return int(self.client.info("stats")["total_reads_processed"]) - self._asked


@contextmanager
def running_server() -> Iterator[Server]:
    """A server without persistence; stopped on the way out."""
    with RedisServer() as server:
        assert server.process is not None
        yield Server(server.url, server.process.pid)


def one_cpu() -> int:
    """The processor that pinned work shares: the last one that this process may use."""
    return max(os.sched_getaffinity(0))
