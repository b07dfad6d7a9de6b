"""The choice of the store: by dotted path, else Redis if ``LOCATION`` is a Redis, else the database."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from django.apps import apps
from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from django_tasklock.backends.contract.stores import LockStore
from django_tasklock.conf import Settings, get_settings
from django_tasklock.process import check_process
from django_tasklock.texts import without_password

__all__ = ["LockStore", "get_backend", "reset", "resolve"]

REDIS = "django_tasklock.backends.redis.RedisBackend"
DATABASE = "django_tasklock.backends.database.DatabaseBackend"
URL_SCHEMES = (
    "redis://", "rediss://", "unix://", "redis+sentinel://", "rediss+sentinel://", "redis+cluster://",
    "rediss+cluster://",
)  # fmt: skip

_preloaded = False
current: LockStore | None = None
"""The process's store; ``None`` until ``get_backend()`` is called."""
_creation_lock = threading.RLock()  # re-entrant: a signal handler may call get_backend() too


def get_backend() -> LockStore:
    """Return the process's store, created on first use. Raises ``ImproperlyConfigured`` that names the wrong
    setting.
    """
    global current
    check_process()
    found = current
    if found is None:
        with _creation_lock:  # a second one would keep its connections open
            found = current = current or _create()
    return found


def _create() -> LockStore:
    if apps.apps_ready and not apps.is_installed("django_tasklock"):
        # Without the app a forked child would go on renewing the locks of its parent, even of one that died.
        raise ImproperlyConfigured("INSTALLED_APPS has no 'django_tasklock': add it, and run manage.py migrate")
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
    """Import the configured store without creating it. Errors are ignored: its first use raises them."""
    global _preloaded
    if not _preloaded:
        _preloaded = True
        with contextlib.suppress(Exception):
            import_string(resolve(get_settings()))


def resolve(settings: Settings) -> str:
    """Return the dotted path of the configured store: never one whose locks only one process sees, unless named."""
    if settings.BACKEND is not None:
        return settings.BACKEND
    location = settings.location
    if location.startswith(URL_SCHEMES):
        return REDIS
    caches = getattr(django_settings, "CACHES", {})
    if location not in caches:
        known = ", ".join(sorted(map(repr, caches))) or "none"
        shown = without_password(location)  # a URL with a typo in its scheme may have one
        raise ImproperlyConfigured(
            f"TASKLOCK['LOCATION'] {shown!r} is neither a CACHES alias (known: {known}) nor a redis:// URL"
        )
    engine = str(caches[location].get("BACKEND", ""))
    return REDIS if "redis" in engine.lower() else DATABASE


def reset() -> None:
    """Close the store and forget it: the next use creates a new one."""
    global current
    if current is not None:
        current.close()
    current = None


def _on_setting_changed(*, setting: str, **kwargs: object) -> None:
    if setting in ("TASKLOCK", "CACHES", "DATABASES"):
        reset()


def after_fork() -> None:
    """Let this process create a store of its own. The parent's is not closed: its connections are the parent's."""
    global current, _creation_lock
    _creation_lock = threading.RLock()  # a thread of the parent may have held the other
    current = None


# On import, for the same reason as in ``conf``.
setting_changed.connect(_on_setting_changed, dispatch_uid="tasklock.backends")
