"""From a database URL to an entry of Django's ``DATABASES``."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urlsplit

__all__ = ["database"]


def database(url: str) -> dict[str, Any]:
    """The entry for ``postgres://``, ``mysql://`` or ``sqlite:///path``; ``ValueError`` for any other.

    The name gets ``test_`` in front, here and in child processes: no test run touches the database it was given.
    """
    parts = urlsplit(url)
    name = unquote(parts.path.removeprefix("/"))
    if not name:
        raise ValueError(f"no database name in {url!r}")
    if parts.scheme == "sqlite":
        return _sqlite(name)
    if parts.scheme not in _ENGINES:
        raise ValueError(f"{url!r} is none of postgres://, mysql://, sqlite:///")
    return {
        "ENGINE": _ENGINES[parts.scheme],
        "NAME": f"test_{name}",
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "127.0.0.1",
        "PORT": parts.port or "",
        "TEST": {"NAME": f"test_{name}"},
    }


_ENGINES = {
    "postgres": "django.db.backends.postgresql",
    "postgresql": "django.db.backends.postgresql",
    "mysql": "django.db.backends.mysql",
}


def _sqlite(path: str) -> dict[str, Any]:
    # A file, because a database in memory is seen by one process only; set up as a busy site would.
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": path,
        "OPTIONS": {
            "timeout": 20,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL",
        },
        "TEST": {"NAME": path},
    }
