"""What the tests of the public names share: a setting for each store, forked children, scripts of their own."""

from __future__ import annotations

import math
import os
import pickle
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import redis
from django.conf import settings as django_settings
from django.db import connections

from django_tasklock.locks.heartbeat import heartbeat
from django_tasklock.testing import forget
from tests.support.stores import clear, eventually

__all__ = ["forked", "in_store", "raw_redis", "script", "setting", "stored"]

PROJECT = Path(__file__).resolve().parents[2]
T = TypeVar("T")

_URL = django_settings.TASKLOCK["LOCATION"]
_BACKENDS = {
    "redis": {"LOCATION": _URL},
    "database": {"BACKEND": "django_tasklock.backends.database.DatabaseBackend"},
    "memory": {"BACKEND": "django_tasklock.backends.memory.MemoryBackend"},
    "cache-django-redis": {"BACKEND": "django_tasklock.backends.cache.CacheBackend", "LOCATION": "default"},
    "cache-core-redis": {"BACKEND": "django_tasklock.backends.cache.CacheBackend", "LOCATION": "core"},
}


def setting(store: str, **more: Any) -> dict[str, Any]:
    """``TASKLOCK`` for a store by its short name."""
    return {**_BACKENDS[store], **more}


def in_store(store: str, settings: Any, **more: Any) -> Iterator[str]:
    """The body of a fixture: this store in force, empty. Nobody renews or remembers anything of it afterwards."""
    settings.TASKLOCK = setting(store, **more)
    clear(store)
    yield store
    forget()
    if store == "database":  # the heartbeat may be in a query, which would hold up or deadlock the flush
        eventually(lambda: heartbeat._wakes_at < math.inf or not heartbeat.alive)


@contextmanager
def raw_redis() -> Iterator[redis.Redis]:
    """A client as redis-cli is one: it knows nothing of locks."""
    client = redis.Redis.from_url(_URL, decode_responses=True)
    try:
        yield client
    finally:
        client.close()


def stored(store: str) -> int:
    """How many things a store holds beside its counts: keys of Redis, rows, locks in memory."""
    if store == "redis":
        with raw_redis() as client:
            return sum("#counts:" not in key and not key.endswith("#hours") for key in client.scan_iter())
    if store == "database":
        from django_tasklock.models import LockRow

        return LockRow.objects.count()
    from django_tasklock.backends.memory.store import store as memory

    return len(memory.locks.held) + len(memory.locks.queues)


def forked(work: Callable[[], T]) -> T:
    """What ``work`` returns in a forked child of this process, as a prefork worker is one."""
    connections.close_all()  # the child must not talk on its parent's sockets
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # "this process is multi-threaded": that is the point
        child = os.fork()
    if not child:
        os.close(reading)
        signal.alarm(90)  # rather than wait for ever; faulthandler's own watch does not survive a fork
        try:
            answer: tuple[bool, object] = (True, work())
        except BaseException:
            answer = (False, traceback.format_exc())
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(pickle.dumps(answer))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    status = os.waitpid(child, 0)[1]
    assert data, f"the child died with status {status}"
    good, value = pickle.loads(data)
    assert good, value
    return value


def script(code: str, *options: str, cwd: Path = PROJECT, **environment: str) -> str:
    """Run ``code`` in an interpreter of its own, warnings being errors; what it printed. It must say nothing else."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(cwd), str(PROJECT)]), **environment}
    done = subprocess.run(
        [sys.executable, "-W", "error", *options, "-c", code],
        cwd=cwd,
        env={key: value for key, value in environment.items() if value},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # At its end it writes its counts, and no test before this one may have made the tables.
    said = [line for line in done.stderr.splitlines() if not line.startswith("counts: the table could not be written")]
    assert said == [], done.stderr
    return done.stdout
