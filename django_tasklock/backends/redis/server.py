"""Information about a Redis server: its version, its eviction policy, whether this user may subscribe.

``CONFIG`` is not used: managed servers refuse it, and ``INFO`` has the same.
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
    """The information that the server disclosed."""

    version: str = ""
    """Empty where the server does not disclose it."""
    policy: str = ""
    """``maxmemory_policy``; empty where the server does not disclose it."""
    wakes: bool = True
    """Whether this user may subscribe, so that waiters are woken; otherwise they poll a few times a second."""

    def older_than(self, *floor: int) -> bool:
        """Tell whether the version is known and below ``floor``."""
        parts = self.version.split(".")[: len(floor)]
        return all(part.isdigit() for part in parts) and bool(self.version) and [*map(int, parts)] < [*floor]


def look(location: str, prefix: str) -> Server:
    """Return the information of the server at ``location``. Raises ``BackendUnavailable``."""
    pool = sync_pool(location)
    client = redis.Redis(connection_pool=pool)
    try:
        client.ping()
        info: dict[str, Any] = {}
        for section in ("server", "memory"):
            with contextlib.suppress(ResponseError):  # this user may not run INFO
                info |= client.info(section)
        return Server(str(info.get("redis_version", "")), str(info.get("maxmemory_policy", "")), _wakes(client, prefix))
    except (RedisError, OSError) as error:
        raise unavailable(error) from error
    finally:
        for one in pools(pool):
            one.disconnect()


def _wakes(client: Any, prefix: str) -> bool:
    channel = f"{Layout(prefix).channel}{secrets.token_hex(12)}"
    try:
        with client.pubsub() as pubsub:
            pubsub.subscribe(channel)
            pubsub.parse_response()
            client.publish(channel, "")
    except NoPermissionError:
        return False
    return True
