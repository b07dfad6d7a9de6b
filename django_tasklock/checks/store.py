"""Checks whether the configured store can hold locks, without connecting to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.conf import settings as django_settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured

from django_tasklock.backends import LockStore, get_backend, resolve
from django_tasklock.checks.settings import valid_settings
from django_tasklock.conf import Settings


def valid_backend() -> tuple[Settings, LockStore] | None:
    """Return settings and backend; ``None`` if E001 or E002 reports them."""
    settings = valid_settings()
    if settings is None:
        return None
    try:
        return settings, get_backend()
    except ImproperlyConfigured:
        return None


def is_kind(backend: LockStore, kind: str) -> bool:
    """Return whether it is our backend of that name, or a subclass of it, without importing the backend's client."""
    home = f"django_tasklock.backends.{kind}"
    return any(base.__module__.partition(home)[0] == "" for base in type(backend).__mro__)


def in_redis(settings: Settings, backend: LockStore) -> bool:
    """Return whether the locks are in a database of a Redis to which ``LOCATION`` points; a Cluster has no others."""
    if is_kind(backend, "redis"):
        return "+cluster://" not in settings.location
    if not isinstance(settings.LOCATION, str):
        return False
    engine = str(django_settings.CACHES.get(settings.LOCATION, {}).get("BACKEND", ""))
    return is_kind(backend, "cache") and "redis" in engine.lower()


def check_backend(app_configs: Any = None, **kwargs: Any) -> list[checks.CheckMessage]:
    """Report E002: an invalid store. E003, W001: an unsuitable cache. W002: one process."""
    settings = valid_settings()
    if settings is None:
        return []  # reported as E001
    try:
        path = resolve(settings)
        backend = get_backend()
        if is_kind(backend, "redis") and in_redis(settings, backend):
            from django_tasklock.backends.redis.location import database_of

            database_of(settings.location)
        if is_kind(backend, "redis") or is_kind(backend, "quorum") or in_redis(settings, backend):
            _check_options(settings.LOCATION)
    except ImproperlyConfigured as error:
        return [checks.Error(str(error), hint="See TASKLOCK in the settings.", id="tasklock.E002")]
    if path.endswith(".cache.CacheBackend"):
        from django_tasklock.backends.cache import weakness

        found = weakness(settings.location)
        if found is not None:
            level, text = found
            if level == "error":
                return [checks.Error(text, hint="Use Redis or the database backend.", id="tasklock.E003")]
            return [checks.Warning(text, hint="Use the database backend instead.", id="tasklock.W001")]
    if not backend.across_processes:
        return [
            checks.Warning(
                f"TASKLOCK['BACKEND'] {path!r} locks within one process only.",
                hint="Fine in tests. In production name Redis or the database.",
                id="tasklock.W002",
            )
        ]
    return []


def _check_options(locations: str | Sequence[str]) -> None:
    """Raise ``ImproperlyConfigured`` for an option with which no connection to a Redis can be made."""
    from django_tasklock.backends.redis.cluster import is_cluster, urls_of
    from django_tasklock.backends.redis.location import check_options

    for location in [locations] if isinstance(locations, str) else locations:
        for url in urls_of(location) if is_cluster(location) else [location]:
            check_options(url)


def check_shared(app_configs: Any = None, **kwargs: Any) -> list[checks.CheckMessage]:
    """Report W004: ``clear()`` of a cache would delete every lock."""
    valid = valid_backend()
    if valid is None or not in_redis(*valid):
        return []
    from django_tasklock.backends.redis.location import database_of, databases_of

    location = valid[0].location
    try:
        database = database_of(location)
    except ImproperlyConfigured:
        return []  # reported as E002
    # An alias that only locks use is not cleared by other code.
    used = {"default", django_settings.CACHE_MIDDLEWARE_ALIAS, django_settings.SESSION_CACHE_ALIAS}
    aliases = [alias for alias in django_settings.CACHES if alias != location or alias in used]
    clearing = sorted(alias for alias in aliases if any(database.same(other) for other in databases_of(alias)))
    if not clearing:
        return []
    names = " and ".join(f"caches[{alias!r}]" for alias in clearing)
    return [
        checks.Warning(
            f"The locks are in {database}, and so is {names}, whose clear() flushes it: every lock would be free at"
            " once.",
            hint="Give them a database number of their own: TASKLOCK['LOCATION'] = 'redis://host:port/<number>', or a"
            " CACHES alias that only locks use.",
            id="tasklock.W004",
        )
    ]
