"""The rate limiters that are measured, in one shape: ours, the usual sketch, and the others."""

from __future__ import annotations

import time
from typing import Any, ClassVar

import redis

from benchmarks.lock_kinds import installed

__all__ = ["Limited", "Ours", "limit_kinds"]


class Limited:
    """A limiter, for one process."""

    label: ClassVar[str]
    package: ClassVar[str] = ""
    """What must be installed; empty: it always is."""

    def __init__(self, url: str, key: str, limit: int, window: float) -> None:
        self.url, self.key, self.limit, self.window = url, key, limit, window

    def acquire(self) -> None:
        """Wait until a call may be made."""
        raise NotImplementedError


class Ours(Limited):
    """``RateLimiter.acquire``."""

    label = "RateLimiter"

    def __init__(self, url: str, key: str, limit: int, window: float) -> None:
        super().__init__(url, key, limit, window)
        from django_tasklock import RateLimiter

        self.limiter = RateLimiter(key, (limit, window))

    def acquire(self) -> None:
        self.limiter.acquire()


class TheSource(Limited):
    """As it was described: prune and count in one trip, add in the next, sleep until the oldest leaves."""

    label = "sorted set in two trips"

    def __init__(self, url: str, key: str, limit: int, window: float) -> None:
        super().__init__(url, key, limit, window)
        self.redis = redis.Redis.from_url(url)

    def acquire(self) -> None:
        while True:
            now = time.time()
            pipe = self.redis.pipeline()
            pipe.zremrangebyscore(self.key, 0, now - self.window)
            pipe.zcard(self.key)
            if pipe.execute()[1] < self.limit:
                self.redis.zadd(self.key, {str(now): now})
                self.redis.expire(self.key, int(self.window) + 1)
                return
            oldest = self.redis.zrange(self.key, 0, 0, withscores=True)
            time.sleep(max(0.0, oldest[0][1] + self.window - time.time()) if oldest else 0.0)


class Limits(Limited):
    """``limits`` cannot wait: its caller sleeps until the time it is told, and asks again."""

    label = "limits moving window"
    package = "limits"

    def __init__(self, url: str, key: str, limit: int, window: float) -> None:
        super().__init__(url, key, limit, window)
        from limits import RateLimitItemPerSecond
        from limits.storage import RedisStorage
        from limits.strategies import MovingWindowRateLimiter

        self.item = RateLimitItemPerSecond(limit, int(window))
        self.strategy = MovingWindowRateLimiter(RedisStorage(url))

    def acquire(self) -> None:
        while not self.strategy.hit(self.item, self.key):
            time.sleep(max(0.001, self.strategy.get_window_stats(self.item, self.key).reset_time - time.time()))


class Pyrate(Limited):
    label = "pyrate-limiter log"
    package = "pyrate_limiter"

    def __init__(self, url: str, key: str, limit: int, window: float) -> None:
        super().__init__(url, key, limit, window)
        from pyrate_limiter import Limiter, Rate, RedisBucket

        bucket: Any = RedisBucket.init([Rate(limit, int(window * 1000))], redis.Redis.from_url(url), key)
        self.limiter = Limiter(bucket)

    def acquire(self) -> None:
        while not self.limiter.try_acquire(self.key, blocking=True):
            pass


class Throttled(Limited):
    label = "throttled-py sliding window"
    package = "throttled"
    using: ClassVar[str] = "SLIDING_WINDOW"

    def __init__(self, url: str, key: str, limit: int, window: float) -> None:
        super().__init__(url, key, limit, window)
        from datetime import timedelta

        from throttled import RateLimiterType, Throttled as Peer, rate_limiter, store

        self.limiter = Peer(
            key=key,
            using=getattr(RateLimiterType, self.using).value,
            quota=rate_limiter.per_duration(timedelta(seconds=window), limit, burst=limit),
            store=store.RedisStore(server=url),
            timeout=60,
        )

    def acquire(self) -> None:
        while self.limiter.limit().limited:
            pass


class ThrottledGcra(Throttled):
    label = "throttled-py GCRA"
    using: ClassVar[str] = "GCRA"


class Ratelimit(Limited):
    """``django-ratelimit`` cannot wait: its caller asks again each hundredth of the window."""

    label = "django-ratelimit"
    package = "django_ratelimit"

    def __init__(self, url: str, key: str, limit: int, window: float) -> None:
        super().__init__(url, key, limit, window)
        from django.conf import settings
        from django.http import HttpRequest
        from django_ratelimit.core import is_ratelimited

        settings.RATELIMIT_USE_CACHE = "django"
        self.request, self.rate, self.refused = HttpRequest(), f"{limit}/{int(window)}s", is_ratelimited

    def acquire(self) -> None:
        key = {"group": self.key, "key": lambda group, request: group, "rate": self.rate}
        while self.refused(self.request, increment=True, **key):
            time.sleep(self.window / 100)


KINDS: tuple[type[Limited], ...] = (Ours, TheSource, Limits, Pyrate, Throttled, ThrottledGcra, Ratelimit)


def limit_kinds() -> list[type[Limited]]:
    """Return those that are installed."""
    return [kind for kind in KINDS if installed(kind.package)]
