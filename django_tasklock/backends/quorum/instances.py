"""One of the independent instances: where it is, whether it is worth asking, and what a new connection to it asks."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from functools import cached_property
from time import monotonic

import redis
from django.core.exceptions import ImproperlyConfigured

from django_tasklock.backends.quorum.scripts import GREET, QuorumKeys
from django_tasklock.backends.redis.address import database_of
from django_tasklock.backends.redis.location import sync_pool
from django_tasklock.backends.redis.pool import make, throw_away
from django_tasklock.backends.redis.wire import Link

SHORT = 0.25
"""Seconds that connecting to one instance may take, at each step."""
REST = 0.1  # seconds for which one that failed is left alone, twice as long after each failure
LONGEST_REST = 1.0


class Instance:
    """One Redis. Its connections are made by the threads that need them."""

    def __init__(self, location: str, keys: QuorumKeys) -> None:
        self.location = location
        self.name = str(database_of(location))
        self.keys = keys
        self.error: Exception | None = None
        """Why it did not answer, the last time; ``None``: it did."""
        self.known: set[str] = set()
        """Scripts that it has executed since it was last lost."""
        self._rest = 0.0
        self._down_until = 0.0
        self._lock = threading.Lock()

    @cached_property
    def pool(self) -> redis.ConnectionPool:
        """How to connect to it."""
        pool = sync_pool(self.location)
        for key in ("socket_timeout", "socket_connect_timeout"):
            pool.connection_kwargs[key] = min(pool.connection_kwargs[key], SHORT)
        return pool

    @property
    def rests(self) -> bool:
        """Whether it failed a moment ago, so that no verb need wait for it if the others will do."""
        return monotonic() < self._down_until

    def failed(self, error: Exception) -> None:
        """Note that this instance did not answer: it is left alone for a while."""
        with self._lock:
            if monotonic() >= self._down_until:
                self._rest = min(LONGEST_REST, 2 * self._rest or REST)
                self._down_until = monotonic() + self._rest * random.uniform(0.8, 1.2)
            self.error = error

    def answered(self) -> None:
        """Note that this instance answered."""
        if self.error is not None:
            self.error, self._rest, self._down_until = None, 0.0, 0.0

    def connect(self) -> Link:
        """Return a new connection that has asked whether the server was started again."""
        connection = make(self.pool)
        try:
            link = Link(connection)
            for packed in (GREET.by_digest, GREET.by_body):
                try:
                    link.ask(packed + self.keys.greeting)
                    break
                except redis.exceptions.NoScriptError:
                    continue
            return link
        except BaseException:
            throw_away(connection)
            raise


def instances_of(locations: Sequence[str] | str, keys: QuorumKeys) -> list[Instance]:
    """Return the instances that ``LOCATION`` names. ``ImproperlyConfigured`` unless they can form a majority."""
    hint = (
        " QuorumBackend needs an odd number of independent Redis servers, three or more:"
        " TASKLOCK['LOCATION'] = ['redis://a:6379/0', 'redis://b:6379/0', 'redis://c:6379/0']."
    )
    if isinstance(locations, str):
        raise ImproperlyConfigured("TASKLOCK['LOCATION'] is one address." + hint)
    if len(locations) < 3:
        raise ImproperlyConfigured(f"TASKLOCK['LOCATION'] has {len(locations)} addresses." + hint)
    if len(locations) % 2 == 0:
        raise ImproperlyConfigured(
            f"TASKLOCK['LOCATION'] has {len(locations)} addresses, which survive no more failures than"
            f" {len(locations) - 1} would: take one away, or add one." + hint
        )
    found = [Instance(location, keys) for location in locations]
    seen: list[str] = []
    for instance in found:
        server = instance.name.rpartition(" of ")[2]
        if server in seen:
            raise ImproperlyConfigured(
                f"TASKLOCK['LOCATION'] has the server {server} twice, which fails once: name another one." + hint
            )
        seen.append(server)
    return found
