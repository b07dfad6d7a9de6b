"""The locks that are measured, in one shape: the floors, ours, and the others as their documentation shows them."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import os
import socket
import time
from abc import ABC, abstractmethod
from typing import Any, ClassVar
from urllib.parse import urlsplit

import redis

from django_tasklock import ConcurrencyLimiter, TaskLock

__all__ = ["Async", "BareSocket", "BlpopWake", "Lock", "installed", "lock_kinds"]

HOLD = 60
"""Seconds that every lock here is asked to live."""
PATIENCE = 10
"""Seconds that every wait may take."""

COMPARE_AND_DELETE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"
RELEASE_AND_WAKE = """
if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('del', KEYS[1], KEYS[2])
redis.call('lpush', KEYS[2], 1)
redis.call('pexpire', KEYS[2], 1000)
return 1
"""


class Refused(Exception):
    """A lock that nobody holds was refused, or a wait ran out: the measurement is void."""


class Lock(ABC):
    """One lock on one key, in one process. Made after the fork, so that it connects for itself."""

    label: ClassVar[str]
    package: ClassVar[str] = ""
    """What must be installed; empty: it always is."""
    waits: ClassVar[str] = "its caller asks again each millisecond"
    """How one that is blocked waits. What is said here flatters a lock that cannot."""

    @abstractmethod
    def __init__(self, url: str, key: str) -> None: ...

    @abstractmethod
    def try_acquire(self) -> bool:
        """Ask once."""

    def acquire(self) -> None:
        """Wait until it is held."""
        deadline = time.monotonic() + PATIENCE
        while not self.try_acquire():
            if time.monotonic() > deadline:
                raise Refused(self.label)
            time.sleep(0.001)

    @abstractmethod
    def release(self) -> None:
        """Give it back."""

    def repeat(self, *, pairs: int = 0, seconds: float = 0) -> int:
        """Acquire and release so often, or for so long. Return how often."""
        made, ends = 0, time.perf_counter() + seconds
        while made < pairs or time.perf_counter() < ends:
            if not self.try_acquire():
                raise Refused(self.label)
            self.release()
            made += 1
        return made


class Async(Lock):
    """A lock of coroutines, in an event loop of its own. It is measured free only."""

    def __init__(self, url: str, key: str) -> None:
        self.runner = asyncio.Runner()

    @abstractmethod
    async def pair(self) -> None:
        """Acquire and release."""

    def repeat(self, *, pairs: int = 0, seconds: float = 0) -> int:
        async def run() -> int:
            made, ends = 0, time.perf_counter() + seconds
            while made < pairs or time.perf_counter() < ends:
                await self.pair()
                made += 1
            return made

        return self.runner.run(run())

    def try_acquire(self) -> bool:
        raise NotImplementedError

    def release(self) -> None:
        raise NotImplementedError


class BareSocket(Lock):
    """SET NX PX and EVALSHA, packed by hand, on one socket: the least that a Python process can spend on a lock."""

    label = "floor: bare socket"

    def __init__(self, url: str, key: str) -> None:
        address = urlsplit(url)
        self.socket = socket.create_connection((address.hostname, address.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sha = self._ask(_pack("SCRIPT", "LOAD", COMPARE_AND_DELETE)).split(b"\r\n")[1].decode()
        name, token = f"bare:{key}", "0" * 32
        self.set_parts = _pack("SET", name, token, "NX", "PX", str(HOLD * 1000)).split(token.encode())
        self.del_parts = _pack("EVALSHA", sha, "1", name, token).split(token.encode())
        self.token = b""

    def try_acquire(self) -> bool:
        self.token = os.urandom(16).hex().encode()
        return self._ask(self.token.join(self.set_parts)) == b"+OK\r\n"

    def release(self) -> None:
        if self._ask(self.token.join(self.del_parts)) != b":1\r\n":
            raise Refused(self.label)

    def _ask(self, packed: bytes) -> bytes:
        self.socket.sendall(packed)
        return self.socket.recv(4096)


def _pack(*words: str) -> bytes:
    body = "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
    return f"*{len(words)}\r\n{body}".encode()


class BlpopWake(Lock):
    """The same through redis-py. The release pushes to a list, and who is woken by that tries again: the usual way not
    to poll."""

    label = "floor: redis-py, BLPOP"
    waits = "woken, tries again"

    def __init__(self, url: str, key: str) -> None:
        self.client: Any = redis.Redis.from_url(url, socket_timeout=None)  # or redis-py 8 ends a BLPOP after 5 s
        self.name = f"wake:{key}"
        self.sha = self.client.script_load(RELEASE_AND_WAKE)
        self.token = ""

    def try_acquire(self) -> bool:
        self.token = os.urandom(16).hex()
        return bool(self.client.set(self.name, self.token, nx=True, px=HOLD * 1000))

    def acquire(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while not self.try_acquire():
            if time.monotonic() > deadline:
                raise Refused(self.label)
            self.client.blpop([f"{self.name}:signal"], timeout=1)

    def release(self) -> None:
        if not self.client.evalsha(self.sha, 2, self.name, f"{self.name}:signal", self.token):
            raise Refused(self.label)


class Ours(Lock):
    """An object per use with the default lease, as ``with TaskLock(name):`` makes it."""

    label = "TaskLock"
    waits = "woken, handed the lock"
    options: ClassVar[dict[str, Any]] = {}

    def __init__(self, url: str, key: str) -> None:
        self.name = f"{self.label}:{key}"

    def new(self) -> TaskLock | ConcurrencyLimiter:
        """One for one use."""
        return TaskLock(self.name, **self.options)

    def try_acquire(self) -> bool:
        self.lock = self.new()
        return self.lock.acquire(blocking=False)

    def acquire(self) -> None:
        self.lock = self.new()
        if not self.lock.acquire(blocking_timeout=PATIENCE):
            raise Refused(self.label)

    def release(self) -> None:
        self.lock.release()


class OursWithoutLease(Ours):
    """No heartbeat: the key lives for the timeout."""

    label = "TaskLock, lease=None"
    options: ClassVar[dict[str, Any]] = {"timeout": HOLD, "lease": None}


class OursLimiter(Ours):
    """A concurrency limiter that admits one, so that it can stand beside locks."""

    label = "ConcurrencyLimiter"

    def new(self) -> ConcurrencyLimiter:
        return ConcurrencyLimiter(self.name, 1)


class OursAsync(Async):
    """``aacquire`` and ``arelease``."""

    label = "TaskLock, coroutine"

    def __init__(self, url: str, key: str) -> None:
        super().__init__(url, key)
        self.name = f"{self.label}:{key}"

    async def pair(self) -> None:
        lock = TaskLock(self.name)
        if not await lock.aacquire(blocking=False):
            raise Refused(self.label)
        await lock.arelease()


class RedisPy(Lock):
    """An object per use, as ``with client.lock(...)`` makes it. django-redis's ``cache.lock`` is the same."""

    label = "redis-py"
    waits = "polls each 100 ms"

    def __init__(self, url: str, key: str) -> None:
        self.client: Any = redis.Redis.from_url(url)
        self.name = f"redis-py:{key}"

    def try_acquire(self) -> bool:
        self.lock = self.client.lock(self.name, timeout=HOLD)
        return bool(self.lock.acquire(blocking=False))

    def acquire(self) -> None:
        self.lock = self.client.lock(self.name, timeout=HOLD)
        if not self.lock.acquire(blocking_timeout=PATIENCE):
            raise Refused(self.label)

    def release(self) -> None:
        self.lock.release()


class RedisPyAsync(Async):
    """redis-py's lock of coroutines."""

    label = "redis-py, coroutine"

    def __init__(self, url: str, key: str) -> None:
        super().__init__(url, key)
        self.client: Any = importlib.import_module("redis.asyncio").Redis.from_url(url)
        self.name = f"redis-py-async:{key}"

    async def pair(self) -> None:
        lock = self.client.lock(self.name, timeout=HOLD)
        if not await lock.acquire(blocking=False):
            raise Refused(self.label)
        await lock.release()


class PythonRedisLock(RedisPy):
    """The release wakes one that waits, which tries again."""

    label = "python-redis-lock"
    package = "redis_lock"
    waits = "woken, tries again"

    def __init__(self, url: str, key: str) -> None:
        self.client = redis.Redis.from_url(url, socket_timeout=None)
        self.kind: Any = importlib.import_module("redis_lock").Lock
        self.name = f"python-redis-lock:{key}"

    def try_acquire(self) -> bool:
        self.lock = self.kind(self.client, self.name, expire=HOLD)
        return bool(self.lock.acquire(blocking=False))

    def acquire(self) -> None:
        self.lock = self.kind(self.client, self.name, expire=HOLD)
        if not self.lock.acquire(timeout=PATIENCE):
            raise Refused(self.label)


class Sherlock(Lock):
    """Making one registers its scripts, so the object is kept."""

    label = "sherlock"
    package = "sherlock"
    waits = "polls each 100 ms"

    def __init__(self, url: str, key: str) -> None:
        kind: Any = importlib.import_module("sherlock").RedisLock
        client = redis.Redis.from_url(url)
        self.lock = kind(f"sherlock:{key}", client=client, expire=HOLD, timeout=PATIENCE, retry_interval=0.1)

    def try_acquire(self) -> bool:
        return bool(self.lock.acquire(blocking=False))

    def acquire(self) -> None:
        self.lock.acquire()  # raises when its time is up

    def release(self) -> None:
        self.lock.release()


class Huey(Lock):
    """huey's ``lock_task``: no owner is compared and, by default, nothing expires."""

    label = "huey, lock_task"
    package = "huey"

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


class CacheAdd(Lock):
    """``cache.add`` and ``cache.delete`` on Django's own Redis cache: anybody's lock is deleted."""

    label = "Django, cache.add"

    def __init__(self, url: str, key: str) -> None:
        self.cache: Any = importlib.import_module("django.core.cache").caches["django"]
        self.key = f"cache-add:{key}"

    def try_acquire(self) -> bool:
        return bool(self.cache.add(self.key, 1, HOLD))

    def release(self) -> None:
        self.cache.delete(self.key)


KINDS: tuple[type[Lock], ...] = (
    BareSocket, BlpopWake, Ours, OursWithoutLease, OursLimiter, OursAsync, RedisPy, RedisPyAsync, PythonRedisLock,
    Sherlock, Huey, CacheAdd,
)  # fmt: skip


def lock_kinds() -> list[type[Lock]]:
    """Those that are installed."""
    return [kind for kind in KINDS if installed(kind.package)]


def installed(module: str) -> bool:
    """Whether it can be imported; nothing always can."""
    return not module or importlib.util.find_spec(module) is not None
