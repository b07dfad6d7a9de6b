"""What a Redis server says of itself: its version, what it does when its memory is full, who may listen.

Never ``CONFIG``: managed servers refuse it, and ``INFO`` has the same.
"""

from __future__ import annotations

import contextlib
import secrets
from dataclasses import dataclass
from typing import Any

import redis
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from django_tasklock.backends.redis.errors import unavailable
from django_tasklock.backends.redis.keys import Layout
from django_tasklock.backends.redis.location import pools, sync_pool


@dataclass(frozen=True)
class Server:
    """What could be learned."""

    version: str = ""
    """Empty where the server does not tell."""
    policy: str = ""
    """``maxmemory_policy``; empty where the server does not tell."""
    wakes: bool = True
    """Whether our waiters may be told that their lock is free; else they look once a second."""

    def older_than(self, *floor: int) -> bool:
        """Tell whether the version is known, and below ``floor``."""
        parts = self.version.split(".")[: len(floor)]
        return all(part.isdigit() for part in parts) and bool(self.version) and [*map(int, parts)] < [*floor]


def look(location: str, prefix: str) -> Server:
    """Ask the server behind ``location``. Raises ``BackendUnavailable`` when it cannot be asked."""
    pool = sync_pool(location)
    client = redis.Redis(connection_pool=pool)
    try:
        client.ping()
        told: dict[str, Any] = {}
        for section in ("server", "memory"):
            with contextlib.suppress(ResponseError):  # may not ask that
                told |= client.info(section)
        return Server(str(told.get("redis_version", "")), str(told.get("maxmemory_policy", "")), _wakes(client, prefix))
    except (RedisError, OSError) as error:
        raise unavailable(error) from error
    finally:
        for one in pools(pool):
            one.disconnect()


def _wakes(client: Any, prefix: str) -> bool:
    channel = f"{Layout(prefix).channel}{secrets.token_hex(12)}"
    try:
        with client.pubsub() as listening:
            listening.subscribe(channel)
            listening.parse_response()
            client.publish(channel, "")
    except NoPermissionError:
        return False
    return True
