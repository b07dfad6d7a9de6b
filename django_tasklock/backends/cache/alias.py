"""Access to a cache alias for locks: keys as given, errors raised, and known weaknesses of cache backends."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from typing import Any

from django.conf import settings as django_settings
from django.core.cache import BaseCache, CacheHandler
from django.core.cache.backends.db import DatabaseCache
from django.core.cache.backends.dummy import DummyCache
from django.core.cache.backends.filebased import FileBasedCache
from django.core.cache.backends.locmem import LocMemCache
from django.core.cache.backends.memcached import BaseMemcachedCache
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, router
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.module_loading import import_string

# Lower case only: a collation may treat "A" and "a" as equal. Longer keys and all others are hashed.
_PLAIN = re.compile(r"(?!tasklock#)[a-z0-9_.:/@+=#{}-]{1,230}")


def cache_key(text: str) -> str:
    """Return ``text`` if every cache can use it as a distinct key, else a hash of it."""
    return text if _PLAIN.fullmatch(text) else f"tasklock#{hashlib.sha256(text.encode()).hexdigest()}"


def bare_key(key: str, prefix: object, version: object) -> str:
    """Return ``key`` unchanged, as a ``KEY_FUNCTION``: a deploy that raises VERSION must not free every lock."""
    return key


class PrivateCache:
    """The cache of an alias, without its KEY_PREFIX and VERSION, and with errors raised instead of ignored.

    Raises ``ImproperlyConfigured`` if there is no such alias.
    """

    def __init__(self, alias: str) -> None:
        aliases = getattr(django_settings, "CACHES", {})
        if alias not in aliases:
            known = ", ".join(sorted(map(repr, aliases))) or "none"
            raise ImproperlyConfigured(f"TASKLOCK['LOCATION'] {alias!r} is not an alias in CACHES; known: {known}")
        self.alias = alias
        self.path = str(aliases[alias].get("BACKEND", ""))
        self._handler = CacheHandler({alias: _params(self.path, aliases[alias])})

    @property
    def cache(self) -> BaseCache:
        """This thread's connection to the cache."""
        return self._handler[self.alias]

    @property
    def per_process(self) -> bool:
        """Whether other processes do not see its entries."""
        kind = _kind(self.path)
        return kind is not None and issubclass(kind, LocMemCache | DummyCache)

    @property
    def database(self) -> BaseDatabaseWrapper | None:
        """This thread's connection to the database whose table the cache is, if it is one: ``add`` hides its errors."""
        table: Any = self.cache
        return connections[router.db_for_write(table.cache_model_class)] if isinstance(table, DatabaseCache) else None

    def seconds(self, ttl: int) -> int:
        """Return the timeout with which an entry stays for at least ``ttl`` milliseconds.

        Whole seconds, because several caches truncate fractions. One more for Memcached, which counts the ticks of a
        clock, and for a database, in which Django truncates the time of expiry: both let entries expire up to a second
        early.
        """
        return math.ceil(ttl / 1000) + isinstance(self.cache, BaseMemcachedCache | DatabaseCache)

    def close(self) -> None:
        """Close this thread's connection."""
        self._handler.close_all()


def _params(path: str, given: Mapping[str, Any]) -> dict[str, Any]:
    params = {**given, "KEY_FUNCTION": bare_key, "KEY_PREFIX": "", "VERSION": 1}
    options = dict(given.get("OPTIONS") or {})
    if path.startswith("django_redis."):
        options["IGNORE_EXCEPTIONS"] = False
    if "ignore_exc" in options:  # pymemcache
        options["ignore_exc"] = False
    if options:
        params["OPTIONS"] = options
    return params


def _kind(path: str) -> type | None:
    try:
        kind = import_string(path)
    except ImportError:
        return None
    return kind if isinstance(kind, type) else None


def weakness(alias: str) -> tuple[str, str] | None:
    """Return why the cache ``alias`` is unfit for locks: ("error" or "warning", text); ``None``: no reason known."""
    kind = _kind(str(django_settings.CACHES[alias].get("BACKEND", "")))
    if kind is None:
        return None
    if issubclass(kind, DummyCache):
        return "error", "DummyCache stores nothing: every process would get every lock."
    if issubclass(kind, LocMemCache):
        return "error", "LocMemCache is seen by one process only: every process would get every lock."
    if issubclass(kind, FileBasedCache):
        return "error", "FileBasedCache.add() is not atomic: several processes would get one lock."
    if issubclass(kind, DatabaseCache):
        database = PrivateCache(alias).database
        if database is not None and database.vendor in ("postgresql", "mysql"):
            text = (
                f"DatabaseCache on {database.display_name} grants an expired entry to several processes at once,"
                " as after every crash of a holder; django_tasklock's database backend does not."
            )
            return "warning", text
    return None
