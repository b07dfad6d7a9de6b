"""The Django project the benchmark runs in, and which adapters it has."""

from __future__ import annotations

from collections.abc import Sequence

import django
from django.conf import settings

from benchmarks.adapters import Adapter
from benchmarks.floors import FLOORS
from benchmarks.peers import PEERS, installed
from django_tasklock.backends import get_backend

__all__ = ["adapters", "configure"]


def configure(url: str) -> None:
    """Settings with ``TASKLOCK`` and the two Redis caches on ``url``, and every import before the first fork."""
    settings.configure(
        SECRET_KEY="benchmark",
        USE_TZ=True,
        INSTALLED_APPS=["django_tasklock"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        TASKLOCK={"LOCATION": url, "ON_UNAVAILABLE": "raise"},
        CACHES={
            "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
            "django": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": url},
            "django_redis": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url},
        },
    )
    django.setup()
    get_backend()


def adapters(only: Sequence[str]) -> tuple[list[type[Adapter]], dict[str, str]]:
    """(the adapters whose label contains one of ``only``, all if empty; package versions).

    A package that is missing is in the second with the words "not installed".
    """
    from benchmarks.ours import OURS

    chosen: list[type[Adapter]] = [*OURS, *FLOORS]
    versions = {}
    for peer in PEERS:
        found = installed(peer)
        versions[peer.package] = found or "not installed"
        if found:
            chosen.append(peer)
    if only:
        chosen = [kind for kind in chosen if any(text.lower() in kind.label.lower() for text in only)]
    return chosen, versions
