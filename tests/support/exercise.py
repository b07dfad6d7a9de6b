"""Every verb once, for the many places a store can be found in."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django_tasklock import TaskLock, force_release_task_lock, get_lock_info, list_all_task_locks
from django_tasklock.backends import get_backend
from django_tasklock.types import Busy, Released, Renewal, RenewalResult, fingerprint
from tests.support.stores import an_ask, eventually
from tests.support.twins import token_in

__all__ = ["KINDS", "exercise"]

KINDS = {"django-redis": "django_redis.cache.RedisCache", "core": "django.core.cache.backends.redis.RedisCache"}
"""Cache backends that a Redis can be taken from."""


def exercise(name: str, store: Any) -> None:
    """Take, look, extend, renew, wait, hand over and release; ``store`` is where the key must be."""
    backend = get_backend()
    lock = TaskLock(name)
    assert lock.acquire() is True
    assert token_in(store, name) == lock.token
    assert isinstance(backend.acquire(an_ask(name)), Busy)
    info = get_lock_info(f"task_lock:{name}")
    assert info is not None
    assert info.fingerprint == fingerprint(lock.token)
    assert name in [found.name for found in list_all_task_locks()]
    assert lock.extend(500) is True
    renewed = backend.renew([Renewal(name, lock.token, 60_000), Renewal(f"{name}:not", "0" * 32, 1)])
    assert renewed == [RenewalResult.RENEWED, RenewalResult.LOST]
    with ThreadPoolExecutor(1) as pool:
        waiter = TaskLock(name)
        waited = pool.submit(waiter.acquire, blocking_timeout=30)
        eventually(lambda: (lock.info() or info).waiting == 1)
        assert lock.release() is Released.RELEASED
        assert waited.result(10) is True
        assert token_in(store, name) == waiter.token
    assert force_release_task_lock(name) is True
    assert waiter.release() is Released.GONE
    assert not store.exists(f"task_lock:{name}")
