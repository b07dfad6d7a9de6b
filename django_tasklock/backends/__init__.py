"""Finding the store: by dotted path, or Redis where ``LOCATION`` is Redis, else the database."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from django_tasklock.backends.contract.locks import LockStore
from django_tasklock.conf import Settings, get_settings
from django_tasklock.texts import without_password

__all__ = ["Backend", "LockStore", "get_backend", "reset", "resolve"]

Backend = LockStore
"""The name that it had: for stores of your own that are named so."""
REDIS = "django_tasklock.backends.redis.RedisBackend"
CLUSTER = "django_tasklock.backends.cluster.ClusterBackend"
DATABASE = "django_tasklock.backends.database.DatabaseBackend"
URL_SCHEMES = ("redis://", "rediss://", "unix://", "redis+sentinel://", "rediss+sentinel://")
CLUSTER_SCHEMES = ("redis+cluster://", "rediss+cluster://")

_preloaded = False
current: LockStore | None = None
"""The process's backend; ``None`` until somebody asks ``get_backend()`` for it."""
_making = threading.RLock()  # re-entrant: a signal handler may take a lock, too


def get_backend() -> LockStore:
    """Return the process's backend, made on first use. Raises ``ImproperlyConfigured`` saying which setting is
    wrong.
    """
    global current
    found = current
    if found is None:
        with _making:  # one, or the connections of the others would be nobody's
            found = current = current or _make()
    return found


def _make() -> LockStore:
    settings = get_settings()
    path = resolve(settings)
    try:
        kind: Any = import_string(path)
    except ImportError as error:
        raise ImproperlyConfigured(f"TASKLOCK['BACKEND'] {path!r} cannot be imported: {error}") from error
    if not (isinstance(kind, type) and issubclass(kind, LockStore)):
        raise ImproperlyConfigured(f"TASKLOCK['BACKEND'] {path!r} is not a LockStore class")
    return kind(settings)  # type: ignore[call-arg]


def preload() -> None:
    """Import the store in force, without making one. What is wrong with it is told to whoever uses it."""
    global _preloaded
    if not _preloaded:
        _preloaded = True
        with contextlib.suppress(Exception):
            import_string(resolve(get_settings()))


def resolve(settings: Settings) -> str:
    """Return the dotted path in force: never, by accident, a lock that only one process sees."""
    if settings.BACKEND is not None:
        return settings.BACKEND
    location = settings.location
    if location.startswith(URL_SCHEMES):
        return REDIS
    if location.startswith(CLUSTER_SCHEMES):
        return CLUSTER
    caches = getattr(django_settings, "CACHES", {})
    if location not in caches:
        known = ", ".join(sorted(map(repr, caches))) or "none"
        shown = without_password(location)  # a URL with a slip in its scheme has one
        raise ImproperlyConfigured(
            f"TASKLOCK['LOCATION'] {shown!r} is neither a CACHES alias (known: {known}) nor a redis:// URL"
        )
    engine = str(caches[location].get("BACKEND", ""))
    return REDIS if "redis" in engine.lower() else DATABASE


def reset() -> None:
    """Forget the backend: the next use makes a new one."""
    global current
    if current is not None:
        current.close()
    current = None


def _forget(*, setting: str, **kwargs: object) -> None:
    if setting in ("TASKLOCK", "CACHES", "DATABASES"):
        reset()


def after_fork() -> None:
    """Let this process make a backend of its own. The parent's is not closed: its connections are the parent's."""
    global current, _making
    _making = threading.RLock()  # a thread that is not here may have it
    current = None


setting_changed.connect(_forget, dispatch_uid="tasklock.backends")
