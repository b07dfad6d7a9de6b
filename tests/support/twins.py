"""One test for both halves of a lock: the verb, or its twin for coroutines."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connections

from django_tasklock import TaskLock, TaskLockAcquireError
from django_tasklock.backends.contract.stores import LockStore
from django_tasklock.locks.lease import Refusal

__all__ = ["TWINS", "call", "channels", "conflict", "listening", "subscribers", "thread_of", "token_in"]

TWINS = pytest.mark.parametrize("way", ["sync", "async"])


def call(way: str, subject: TaskLock | LockStore, verb: str, *arguments: Any, **options: Any) -> Any:
    """``subject.verb(...)``, or what its twin says in an event loop of its own; without a twin it runs in a thread."""
    plain = getattr(subject, verb)
    if way == "sync":
        return plain(*arguments, **options)
    return async_to_sync(getattr(subject, f"a{verb}", sync_to_async(plain)))(*arguments, **options)


def conflict(way: str, lock: TaskLock, wait: float | None = None) -> TaskLockAcquireError:
    """The error of who is refused the lock, which is busy or cannot be asked for. ``wait``: as of ``take``."""
    refusal = call(way, lock, "take", wait)
    assert isinstance(refusal, Refusal)
    return refusal.error


def thread_of(work: Callable[[], object]) -> threading.Thread:
    """A thread that does it, and leaves no connection to a database open when it ends."""

    def run() -> None:
        try:
            work()
        finally:
            connections.close_all()

    return threading.Thread(target=run)


def token_in(store: redis.Redis, name: str) -> str | None:
    """The token in the lock's key, as the store has it."""
    value = store.get(f"task_lock:{name}")
    return None if value is None else str(json.loads(value)["token"])


def channels(store: redis.Redis, name: str) -> set[bytes]:
    """Those on which somebody waits for this lock or limiter: one of each process."""
    waiters = store.hvals(f"task_lock#waiters:{name}") + store.hvals(f"task_lock#permits-waiters:{name}")
    return {waiter.split()[1] for waiter in waiters}


def subscribers(store: redis.Redis, name: str) -> int:
    """How many processes the server would tell of the lock or limiter for which they wait."""
    return sum(int(number) for _, number in store.pubsub_numsub(*channels(store, name)))


def listening(store: redis.Redis, name: str) -> int:
    """How many wait for the lock, in the queue, and are told when it is their turn."""
    return sum(int(stored.split()[0]) > 0 for stored in store.hvals(f"task_lock#waiters:{name}"))
