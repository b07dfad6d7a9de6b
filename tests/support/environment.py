"""The stores of this test run, decided once and exported, so that every child process finds the same ones.

``TASKLOCK_TEST_DATABASE`` and ``TASKLOCK_TEST_REDIS`` name servers to use. Without them the
run makes its own: a SQLite file and an embedded Redis, both gone afterwards. Here they are only
named, because settings are also read by tools that test nothing; ``conftest`` makes them.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path

from tests.support.redis_server import free_port

__all__ = ["DATABASE", "EMBEDDED", "REDIS", "directory", "embedded_redis_port", "settle"]

DATABASE = "TASKLOCK_TEST_DATABASE"
"""A URL: ``postgres://user:password@host:port/name``, ``mysql://...`` or ``sqlite:///path``."""
REDIS = "TASKLOCK_TEST_REDIS"
"""``redis://host:port/db``. Its database is flushed by the tests."""
EMBEDDED = "TASKLOCK_TEST_EMBEDDED"
"""Set by ourselves: the port on which this run's own Redis answers."""
DIRECTORY = "TASKLOCK_TEST_DIRECTORY"
"""Set by ourselves: where this run keeps its files."""


def settle() -> None:
    """Name both stores in the environment. Whoever is first decides; child processes find it done."""
    if DIRECTORY not in os.environ:
        os.environ[DIRECTORY] = str(Path(tempfile.gettempdir()) / f"tasklock-tests-{secrets.token_hex(8)}")
    if not os.environ.get(DATABASE):
        os.environ[DATABASE] = f"sqlite:///{directory() / 'tests.sqlite3'}"
    if not os.environ.get(REDIS):
        os.environ[EMBEDDED] = str(free_port())
        os.environ[REDIS] = f"redis://127.0.0.1:{os.environ[EMBEDDED]}/0"


def directory() -> Path:
    """Where this run keeps its files; there as long as it runs."""
    return Path(os.environ[DIRECTORY])


def embedded_redis_port() -> int | None:
    """The port this run's own Redis is to answer on; ``None`` if a server was named."""
    port = os.environ.get(EMBEDDED)
    return int(port) if port else None
