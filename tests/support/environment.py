"""The stores of this test run, decided once and exported, so that every child process finds the same ones.

``TASKLOCK_TEST_DATABASE`` and ``TASKLOCK_TEST_REDIS`` name servers to use. Without them the
run makes its own: a SQLite file and an embedded Redis, both gone afterwards. Here they are only
named, because settings are also read by tools that test nothing; ``conftest`` makes them.

A run in parallel (pytest-xdist) has stores for each of its workers: a directory, a database and a Redis of its own.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path

from tests.support.redis_server import free_port

__all__ = ["BROKER", "DATABASE", "EMBEDDED", "REDIS", "directory", "embedded_redis_port", "redis_is_named", "settle"]

DATABASE = "TASKLOCK_TEST_DATABASE"
"""A URL: ``postgres://user:password@host:port/name``, ``mysql://...`` or ``sqlite:///path``."""
REDIS = "TASKLOCK_TEST_REDIS"
"""``redis://host:port/db``. Its database is flushed by the tests."""
BROKER = "TASKLOCK_TEST_BROKER"
"""``amqp://user:password@host:port/vhost``. The tests remove what they make there."""
EMBEDDED = "TASKLOCK_TEST_EMBEDDED"
"""Set by ourselves: the port on which this run's own Redis answers."""
DIRECTORY = "TASKLOCK_TEST_DIRECTORY"
"""Set by ourselves: where this run keeps its files."""
XDIST_WORKER = "PYTEST_XDIST_WORKER"
"""Set by pytest-xdist in each of its workers, and found by their child processes."""
OWNER = "TASKLOCK_TEST_OWNER"
"""Set by ourselves: the pytest-xdist worker that these stores are for."""


def settle() -> None:
    """Name both stores in the environment. Whoever is first decides; child processes find it done."""
    if DIRECTORY not in os.environ:
        os.environ[DIRECTORY] = str(Path(tempfile.gettempdir()) / f"tasklock-tests-{secrets.token_hex(8)}")
    if not os.environ.get(DATABASE):
        os.environ[DATABASE] = f"sqlite:///{directory() / 'tests.sqlite3'}"
    if not os.environ.get(REDIS):
        os.environ[EMBEDDED] = str(free_port())
        _embed_redis()
    worker = os.environ.get(XDIST_WORKER)
    if worker and os.environ.get(OWNER) != worker:
        _separate(worker)


def _embed_redis() -> None:
    os.environ[EMBEDDED] = str(free_port())
    os.environ[REDIS] = f"redis://127.0.0.1:{os.environ[EMBEDDED]}/0"


def _separate(worker: str) -> None:
    # What stands in the environment was found there: it is that of the process which distributes the tests.
    os.environ[OWNER] = worker
    os.environ[DIRECTORY] = str(directory() / worker)
    url, mark, options = os.environ[DATABASE].partition("?")
    os.environ[DATABASE] = f"{url}_{worker}{mark}{options}"
    if not redis_is_named():
        _embed_redis()


def directory() -> Path:
    """Where this run keeps its files; there as long as it runs."""
    return Path(os.environ[DIRECTORY])


def embedded_redis_port() -> int | None:
    """The port this run's own Redis is to answer on; ``None`` if a server was named."""
    port = os.environ.get(EMBEDDED)
    return int(port) if port else None


def redis_is_named() -> bool:
    """Whether the tests run on a Redis that somebody named, in the one database that they may flush."""
    return embedded_redis_port() is None
