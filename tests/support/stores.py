"""The backends under test by short names, and what tests ask of them."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

import pytest
from django.conf import settings as django_settings
from django.core.cache import caches

from django_tasklock import get_lock_ttl
from django_tasklock.backends.contract.stores import LockStore
from django_tasklock.conf import Settings
from django_tasklock.types import AcquireRequest, Busy, Grant, monotonic
from tests.support import cluster, quorum, sentinel

__all__ = [
    "ALL",
    "BEYOND",
    "LAPSING",
    "LISTING",
    "PATIENCE",
    "QUEUEING",
    "WAKING",
    "an_ask",
    "be_patient",
    "clear",
    "end_lease",
    "eventually",
    "granted",
    "make",
    "new_token",
    "renewed",
    "stores",
]

T = TypeVar("T")

_STORES = {
    "redis": ("redis.RedisBackend", None),
    "database": ("database.DatabaseBackend", "default"),
    "cache-django-redis": ("cache.CacheBackend", "default"),
    "cache-core-redis": ("cache.CacheBackend", "core"),
    "cache-filebased": ("cache.CacheBackend", "filebased"),  # no lock: for tests of the tests
    "memory": ("memory.MemoryBackend", "default"),
    "sentinel": ("redis.RedisBackend", None),
    "cluster": ("redis.RedisBackend", None),
}
ALL = ("redis", "database", "cache-django-redis", "cache-core-redis", "memory")
LAPSING = ("redis", "database", "cache-django-redis", "memory")  # one cache will do where each test takes it a second
LISTING = ("redis", "database", "memory")
WAKING = ("redis", "memory")
BEYOND = ("sentinel", "cluster", "quorum-3", "quorum-5")
"""Several servers that are one store: the contract of locks holds there too."""
QUEUEING = ("sentinel", "cluster")
"""Those of them with a queue, permits and rate limits, too: a majority has locks only."""
PATIENCE = 5.0
"""Seconds for which an instance may be silent in a test that is not about silent ones."""


def stores(*names: str) -> list[object]:
    """Parameters of a test that runs on each of these stores."""
    marks = [_MARKS.get(name, _MARKS.get(name.partition("-")[0], [])) for name in names]
    return [pytest.param(name, marks=mark, id=name) for name, mark in zip(names, marks, strict=True)]


_MARKS = {
    "redis": [pytest.mark.redis],
    "cache": [pytest.mark.redis],
    "quorum": [pytest.mark.redis],
    "quorum-5": [pytest.mark.redis, pytest.mark.slow],
    "sentinel": [pytest.mark.redis, pytest.mark.slow],
    "cluster": [pytest.mark.redis, pytest.mark.slow],
    "database": [pytest.mark.database, pytest.mark.django_db(transaction=True)],
}


def make(name: str, **more: Any) -> LockStore:
    """A backend of its own, as another process would have it. It shares the store with all others of that name."""
    if name.startswith("quorum"):
        return quorum.backend(int(name[-1]), **more)
    path, alias = _STORES[name]
    module, kind = path.split(".")
    if name in ("sentinel", "cluster"):
        location = sentinel.of_this_run().url() if name == "sentinel" else cluster.of_this_run().url
    else:
        location = alias or django_settings.TASKLOCK["LOCATION"]
    backend = getattr(import_module(f"django_tasklock.backends.{module}"), kind)(Settings(LOCATION=location, **more))
    assert isinstance(backend, LockStore)
    return backend


def clear(name: str) -> None:
    """Lose all data of a store, as a flush does."""
    if name == "database":
        from django_tasklock.models import LockRow

        LockRow.objects.all().delete()
    elif name == "memory":
        from django_tasklock.backends.memory import reset

        reset()
    elif name.startswith("quorum"):
        quorum.clear(int(name[-1]))
    elif name == "sentinel":
        with sentinel.of_this_run().primary() as primary:
            primary.flushall()
    elif name == "cluster":
        cluster.of_this_run().flush()
    else:
        alias = _STORES[name][1] or "default"
        caches[alias].clear()  # FLUSHDB


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stalls for a second is neither a silent instance nor a dead waiter, nor one that cannot listen."""
    for constant in ("asking.LIMIT", "asking.SHORT"):
        monkeypatch.setattr(f"django_tasklock.backends.quorum.{constant}", PATIENCE)
    for module in ("store", "waiter"):  # as in Redis
        monkeypatch.setattr(f"django_tasklock.backends.memory.{module}.HANDOVER_TTL", 3000)
    monkeypatch.setattr("django_tasklock.backends.redis.wake.SUBSCRIBING", PATIENCE)


def new_token() -> str:
    """A token as locks make them."""
    return os.urandom(16).hex()


def an_ask(
    name: str,
    token: str | None = None,
    *,
    ttl: int = 60_000,
    hold: int = 3_600_000,
    holder: str = "{}",
    limit: int = 1,
) -> AcquireRequest:
    """A request for a lock or a permit, by a new holder unless a token is given. ``ttl`` and ``hold``: milliseconds."""
    return AcquireRequest(name, token or new_token(), ttl, hold, holder, limit=limit)


def granted(answer: Grant | Busy | None) -> Grant:
    """The answer, which must be a grant."""
    assert isinstance(answer, Grant), answer
    return answer


def eventually(condition: Callable[[], T], seconds: float = 30.0, otherwise: Callable[[], object] = str) -> T:
    """What ``condition`` returns once that is true; it must be so within ``seconds``, or ``otherwise`` tells why."""
    ends, pause = time.monotonic() + seconds, 0.002
    while not (value := condition()):
        assert time.monotonic() < ends, f"not so within {seconds} s: {condition} {otherwise()}"
        time.sleep(pause)
        pause = min(pause * 1.2, 0.03)  # what takes long is not to be kept from it by being asked for
    return value


def end_lease(lock: Any) -> None:
    """Let the lease of ``lock`` end now, in its store and for its holder, however slow the machine is."""
    lease = lock.lease
    assert lease.backend.extend(lock.name, lease.token, 1, 1)
    lease.deadline = lease.until = monotonic()
    assert lock.lost
    eventually(lambda: lease.backend.get(lock.name) is None)


def renewed(name: str) -> None:
    """Wait until the lock has more time left than it had a moment ago."""
    left = [math.inf]

    def grew() -> bool:
        left.append(get_lock_ttl(name) or 0)
        return left[-1] > left[-2]

    eventually(grew)
