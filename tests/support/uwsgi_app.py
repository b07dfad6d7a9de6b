"""What uWSGI serves in tests. It takes a lock and a turn at a limiter before the fork, as modules do when imported."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Iterable
from typing import Any

import django

django.setup()

from django.conf import settings  # noqa: E402
from redis import Redis  # noqa: E402

from django_tasklock import RateLimiter, TaskLock, get_lock_holder  # noqa: E402
from django_tasklock.backends import get_backend  # noqa: E402
from django_tasklock.locks.heartbeat import heartbeat  # noqa: E402
from django_tasklock.types import Released  # noqa: E402
from tests.support.stores import an_ask, granted  # noqa: E402

LEASE = 3.0
before_the_fork = TaskLock("uwsgi:import", lease=12)
limiter = RateLimiter("uwsgi:limit", "10000/s")
assert before_the_fork.acquire()
limiter.acquire()
while heartbeat._wakes_at > 1e12:  # a fork of uWSGI's in the middle of a thread's step stops the child for ever
    time.sleep(0.01)


def hold(name: str, seconds: float = 2 * LEASE) -> dict[str, Any]:
    """Hold a lock, for longer than a lease lasts without renewal, and count who is inside."""
    lock, redis = TaskLock(name, lease=LEASE), Redis.from_url(settings.TASKLOCK["LOCATION"])
    if not lock.acquire(blocking_timeout=30 if seconds else None):
        return {"acquired": False, "inherited": before_the_fork.held}
    inside, ends = redis.incr(f"inside:{name}"), time.monotonic() + seconds
    while time.monotonic() < ends and not lock.lost:
        time.sleep(0.01)
    redis.decr(f"inside:{name}")
    named = f":{os.getpid()}" in get_lock_holder(name)
    return {"acquired": True, "inside": inside, "named": named, "released": lock.release() is Released.RELEASED}


def attempt(name: str) -> dict[str, Any]:
    """Try to take it."""
    return hold(name, 0)


def talk(name: str) -> dict[str, Any]:
    """Send what would have a wrong answer if another process read it, or its answer were read here."""
    store = get_backend()
    for _ in range(100):
        ask = an_ask(f"{name}:{secrets.token_hex(6)}")
        granted(store.acquire(ask))
        assert store.get(ask.name).token == ask.token
        assert store.release(ask.name, ask.token) is Released.RELEASED
        limiter.acquire()
    return {}


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answer ``/verb/name`` with the pid and what the verb says, as JSON."""
    _, verb, name = environ["PATH_INFO"].split("/")
    said = {"hold": hold, "attempt": attempt, "talk": talk}[verb](name)
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps({"pid": os.getpid(), **said}).encode()]
