"""What tests of concurrency limiters ask of their stores."""

from __future__ import annotations

import os
from typing import Any

import redis

from tests.support import environment
from tests.support.stores import clear

__all__ = ["clear_permits", "lapse"]


def clear_permits(store: str) -> None:
    """Lose all permits of a store, and its locks too where they lie together."""
    if store == "database":
        from django_tasklock.models import LimiterRow, PermitRow

        PermitRow.objects.all().delete()
        LimiterRow.objects.all().delete()
    else:
        clear(store)


def lapse(store: str, permits: Any, name: str, token: str) -> None:
    """What the end of a lease does, without the wait for it."""
    if store == "redis":
        key = permits.layout.members + name
        with redis.Redis.from_url(os.environ[environment.REDIS]) as client:
            client.zadd(key, {token: 1}, xx=True)
    elif store == "database":
        from django_tasklock.models import PermitRow

        PermitRow.objects.filter(token=token).update(expires_at=1)
    else:
        from django_tasklock.backends.memory.store import store as memory

        with memory.mutex:
            memory.permits.held[name][token].expires = 1
