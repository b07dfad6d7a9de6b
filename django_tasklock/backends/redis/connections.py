"""The connections of a ``RedisBackend``: the protocols it needs, and the implementation for a single server."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Protocol

from django_tasklock.backends.redis.client import Client
from django_tasklock.backends.redis.cluster import ClusterClient
from django_tasklock.backends.redis.keys import Layout
from django_tasklock.backends.redis.location import sync_pool
from django_tasklock.backends.redis.script import Script


class Asking(Protocol):
    """Runs scripts for the threads of this process: see ``Client``."""

    def run(
        self, script: Script, keys: Sequence[str], args: Sequence[str | bytes | int] = (), *, again: bool = True
    ) -> tuple[Any, bool]:
        """Run ``script``; return its reply, and whether an earlier attempt may have been executed too."""

    def connect(self) -> Any:
        """Return a new connection of redis-py's to the server that runs the scripts. Raises redis-py's errors."""


class Connections(Protocol):
    """The connections of a ``RedisBackend``."""

    @property
    def wire(self) -> Asking:
        """The connections of this process's threads, made on first use."""

    def close(self) -> None:
        """Close the connections of the threads, those in use when they are put back. Each later request opens one."""


class OneServer:
    """The connections to the server that a setting names."""

    def __init__(self, location: str, layout: Layout) -> None:
        self._location = location
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._closed = False

    @property
    def wire(self) -> Client:
        """The connections of this process's threads, made on first use."""
        if self._client is None:
            with self._lock:
                if self._client is None:
                    client = Client(sync_pool(self._location))
                    if self._closed:
                        client.close()
                    self._client = client
        return self._client

    def close(self) -> None:
        """Close the connections of the threads, and those in use when they are put back."""
        with self._lock:
            self._closed = True
            if self._client is not None:
                self._client.close()


class ClusterConnections:
    """The connections to the node of a Redis Cluster that serves the slot of all keys."""

    def __init__(self, location: str, layout: Layout) -> None:
        self.wire = ClusterClient(location, layout.prefix)
        self.close = self.wire.close
