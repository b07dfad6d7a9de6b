"""The other Python locks, used the way their documentation shows."""

from __future__ import annotations

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from benchmarks.adapters import HOLD, Adapter, AsyncAdapter, CallerRetries, Lock, Refused

__all__ = ["PEERS", "installed"]


def _redis(url: str, **options: Any) -> Any:
    return importlib.import_module("redis").Redis.from_url(url, **options)


class RedisPyLock(Lock):
    """A lock object per use, as ``with client.lock(...)`` makes it."""

    label = "redis-py Lock"
    package, module = "redis", "redis"
    waits = "polls every 100 ms"

    def __init__(self, url: str, key: str) -> None:
        self.client: Any = _redis(url)
        self.name = f"{type(self).__name__}:{key}"

    def new(self) -> Any:
        """The lock object for one acquire."""
        return self.client.lock(self.name, timeout=HOLD)

    def try_acquire(self) -> bool:
        self.lock = self.new()
        return bool(self.lock.acquire(blocking=False))

    def acquire(self) -> None:
        self.lock = self.new()
        if not self.lock.acquire(blocking_timeout=10):
            raise Refused(self.label)

    def release(self) -> None:
        self.lock.release()


class RedisPyLockReused(RedisPyLock):
    """The same object for every pair."""

    label = "redis-py Lock, object reused"
    only_pairs = True

    def __init__(self, url: str, key: str) -> None:
        super().__init__(url, key)
        self.kept = super().new()

    def new(self) -> Any:
        return self.kept


class DjangoRedis(RedisPyLock):
    """``cache.lock`` of django-redis."""

    label = "django-redis cache.lock"
    package, module = "django-redis", "django_redis"

    def __init__(self, url: str, key: str) -> None:
        super().__init__(url, key)
        self.client = importlib.import_module("django.core.cache").caches["django_redis"]


class RedisPyAsyncio(AsyncAdapter):
    """redis-py's asyncio lock, a lock object per use."""

    label = "redis-py asyncio Lock"
    package, module = "redis", "redis"

    def __init__(self, url: str, key: str) -> None:
        super().__init__(url, key)
        self.client: Any = importlib.import_module("redis.asyncio").Redis.from_url(url)
        self.name = f"{type(self).__name__}:{key}"

    async def pair(self) -> None:
        lock = self.client.lock(self.name, timeout=HOLD)
        if not await lock.acquire(blocking=False):
            raise Refused(f"{self.label}: a free lock was refused")
        await lock.release()


class PythonRedisLock(Lock):
    """python-redis-lock: the release wakes a waiter, which tries again."""

    label = "python-redis-lock"
    package, module = "python-redis-lock", "redis_lock"
    waits = "woken (BLPOP), tries again"

    def __init__(self, url: str, key: str) -> None:
        # redis-py 8's default socket timeout would break its waits after 5 s.
        self.client: Any = _redis(url, socket_timeout=None)
        self.kind: Any = importlib.import_module("redis_lock").Lock
        self.name = f"{type(self).__name__}:{key}"

    def try_acquire(self) -> bool:
        self.lock = self.kind(self.client, self.name, expire=HOLD)
        return bool(self.lock.acquire(blocking=False))

    def acquire(self) -> None:
        self.lock = self.kind(self.client, self.name, expire=HOLD)
        if not self.lock.acquire(timeout=10):
            raise Refused(self.label)

    def release(self) -> None:
        self.lock.release()


class Sherlock(Lock):
    """sherlock's Redis lock. Making one registers its scripts, so the object is kept."""

    label = "sherlock RedisLock"
    package, module = "sherlock", "sherlock"
    waits = "polls every 100 ms"

    def __init__(self, url: str, key: str) -> None:
        kind: Any = importlib.import_module("sherlock").RedisLock
        self.lock = kind(f"sherlock:{key}", client=_redis(url), expire=HOLD, timeout=10, retry_interval=0.1)

    def try_acquire(self) -> bool:
        return bool(self.lock.acquire(blocking=False))

    def acquire(self) -> None:
        self.lock.acquire()  # raises when its time is up

    def release(self) -> None:
        self.lock.release()


class Huey(CallerRetries):
    """huey's ``lock_task``: no owner is checked and, by default, nothing expires."""

    label = "huey lock_task"
    package, module = "huey", "huey"

    def __init__(self, url: str, key: str) -> None:
        self.huey: Any = importlib.import_module("huey").RedisHuey("bench", url=url)
        self.taken: Any = importlib.import_module("huey.exceptions").TaskLockedException
        self.key = key

    def try_acquire(self) -> bool:
        self.lock = self.huey.lock_task(self.key)
        try:
            return bool(self.lock.acquire())
        except self.taken:
            return False

    def release(self) -> None:
        self.lock.release()


class CacheAdd(CallerRetries):
    """``cache.add`` and ``cache.delete`` on Django's own Redis cache: anybody's lock is deleted."""

    label = "Django cache.add + delete"
    package, module = "Django", "django"

    def __init__(self, url: str, key: str) -> None:
        self.cache: Any = importlib.import_module("django.core.cache").caches["django"]
        self.key = f"{type(self).__name__}:{key}"

    def try_acquire(self) -> bool:
        return bool(self.cache.add(self.key, 1, HOLD))

    def release(self) -> None:
        self.cache.delete(self.key)


PEERS: list[type[Adapter]] = [
    RedisPyLock,
    RedisPyLockReused,
    DjangoRedis,
    PythonRedisLock,
    Sherlock,
    Huey,
    CacheAdd,
    RedisPyAsyncio,
]


def installed(adapter: type[Adapter]) -> str | None:
    """The version of the package an adapter needs; ``None`` if it cannot be imported."""
    try:
        importlib.import_module(adapter.module)
        return version(adapter.package)
    except (ImportError, PackageNotFoundError):
        return None
