"""Caches that misbehave in the ways real ones do."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from django.core.cache.backends.locmem import LocMemCache
from django.core.cache.backends.memcached import BaseMemcachedCache

__all__ = ["FakeMemcached", "HidingCache"]


class HidingCache(LocMemCache):
    """While ``down`` it stores nothing, finds nothing and says nothing, as some clients do with a dead server."""

    down = False

    def add(self, *args: Any, **kwargs: Any) -> bool:
        return False if self.down else super().add(*args, **kwargs)

    def get(self, key: str, default: Any = None, version: int | None = None) -> Any:
        return default if self.down else super().get(key, default, version)

    def set(self, *args: Any, **kwargs: Any) -> None:
        if not self.down:
            super().set(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> bool:
        return False if self.down else super().delete(*args, **kwargs)


class FakeMemcached(BaseMemcachedCache):
    """Django's half is real, so are its rules for keys; the server is a dict that notes the timeouts."""

    timeouts: list[int] = []

    def __init__(self, server: str, params: dict[str, Any]) -> None:
        library = SimpleNamespace(Client=_Client)
        super().__init__(server, params, library=library, value_not_found_exception=KeyError)


class _Client:
    entries: dict[str, tuple[float, Any]] = {}

    def __init__(self, servers: object, **options: object) -> None:
        pass

    def get(self, key: str, default: Any = None) -> Any:
        ends, value = self.entries.get(key, (0.0, default))
        return value if ends > time.monotonic() else default

    def get_multi(self, keys: Any) -> dict[str, Any]:
        return {key: value for key in keys if (value := self.get(key)) is not None}

    def set(self, key: str, value: Any, timeout: int) -> bool:
        FakeMemcached.timeouts.append(timeout)
        self.entries[key] = (time.monotonic() + timeout, value)
        return True

    def add(self, key: str, value: Any, timeout: int) -> bool:
        return self.get(key) is None and self.set(key, value, timeout)

    def touch(self, key: str, timeout: int) -> bool:
        value = self.get(key)
        return value is not None and self.set(key, value, timeout)

    def delete(self, key: str) -> bool:
        return self.entries.pop(key, None) is not None

    def disconnect_all(self) -> None:
        pass
