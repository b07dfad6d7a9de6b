"""What tests ask of a Redis Cluster, and somebody who waits there."""

from __future__ import annotations

import threading
import time
from typing import Any

from redis.crc import key_slot

from django_tasklock import BackendUnavailable
from django_tasklock.backends.redis import RedisBackend
from django_tasklock.types import Grant
from tests.support.cluster import Cluster, Node
from tests.support.stores import an_ask

__all__ = ["SLOT", "Waiting", "away", "key_of", "listening", "scripts"]


SLOT = key_slot(b"task_lock")
"""Where all locks lie."""


def key_of(name: str) -> str:
    """The key of a lock."""
    return f"{{task_lock}}:{name}"


def away(cluster: Cluster) -> Node:
    """Return a node that does not serve the locks."""
    serving = cluster.serving(SLOT)
    return next(node for node in cluster.primaries if node is not serving)


def scripts(cluster: Cluster) -> list[int]:
    """How many scripts each node was asked to run so far."""
    found = []
    for node in cluster.primaries:
        stats = node.client.info("commandstats")
        found.append(sum(stats.get(f"cmdstat_{verb}", {}).get("calls", 0) for verb in ("eval", "evalsha")))
    return found


class Waiting:
    """Somebody who waits for a lock, in a thread of this process."""

    def __init__(self, backend: RedisBackend, name: str) -> None:
        self.backend = backend
        self.request = an_ask(name)
        self.granted: Grant | None = None
        self._over = threading.Event()
        self.thread = threading.Thread(target=self._wait, daemon=True)

    def _wait(self) -> None:
        with self.backend.waiter(self.request) as waiter:
            while not self._over.is_set() and self.granted is None:
                try:
                    answer: Any = waiter.acquire()
                    if not isinstance(answer, Grant):
                        answer = waiter.wait(1.0)
                except BackendUnavailable:
                    time.sleep(0.05)
                    continue
                if isinstance(answer, Grant):
                    self.granted = answer

    def __enter__(self) -> Waiting:
        self.thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._over.set()
        self.thread.join(10)


def listening(cluster: Cluster, name: str) -> int:
    """How many wait for the lock, in the queue, and are told when it is their turn."""
    client = cluster.serving(SLOT).client
    return sum(int(value.split()[0]) > 0 for value in client.hvals(f"{{task_lock}}#waiters:{name}"))
