"""What tests ask of a Redis Cluster, and somebody who waits there."""

from __future__ import annotations

import threading
import time
from typing import Any

from django_tasklock import BackendUnavailable
from django_tasklock.backends.cluster import ClusterBackend
from django_tasklock.backends.cluster.buckets import BUCKETS, buckets_of, number_of
from django_tasklock.types import Grant
from tests.support.cluster import Cluster, Node
from tests.support.stores import an_ask

__all__ = ["Waiting", "away", "key_of", "listening", "scripts", "slot_of"]


def slot_of(name: str) -> int:
    """Where a lock lies."""
    return buckets_of("task_lock:")[number_of(name, BUCKETS)].slot


def key_of(name: str) -> str:
    """The key of a lock."""
    return buckets_of("task_lock:")[number_of(name, BUCKETS)].prefix + name


def away(cluster: Cluster, name: str) -> Node:
    """Return a node that does not serve a lock."""
    serving = cluster.serving(slot_of(name))
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

    def __init__(self, backend: ClusterBackend, name: str, looks: float = 1.0) -> None:
        self.backend = backend
        self.request = an_ask(name)
        self.looks = looks
        self.granted: Grant | None = None
        self._over = threading.Event()
        self.thread = threading.Thread(target=self._wait, daemon=True)

    def _wait(self) -> None:
        with self.backend.waiter(self.request) as waiter:
            while not self._over.is_set() and self.granted is None:
                try:
                    answer: Any = waiter.acquire()
                    if not isinstance(answer, Grant):
                        answer = waiter.wait(self.looks)
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


def listening(backend: ClusterBackend, cluster: Cluster, name: str) -> int:
    """How many wait for the lock, in the queue, and are told when it is their turn."""
    client = cluster.serving(slot_of(name)).client
    return sum(int(value.split()[0]) > 0 for value in client.hvals(backend.of(name).layout.seen + name))
