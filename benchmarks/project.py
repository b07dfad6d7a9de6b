"""The Django project that the benchmarks run in, and the workers of ``tasks``."""

from __future__ import annotations

import os
from pathlib import Path

import django
from django.conf import settings
from django.core.management import call_command

__all__ = ["DATABASE", "URL", "configure"]

URL = "TASKLOCK_BENCH_URL"
DATABASE = "TASKLOCK_BENCH_DATABASE"


def configure() -> None:
    """Set Django up, once: Redis and the SQLite file are those that the environment names. Make the tables, if they
    are not there."""
    if settings.configured:
        return
    url = os.environ[URL]
    settings.configure(
        SECRET_KEY="benchmark",
        USE_TZ=True,
        INSTALLED_APPS=["django_tasklock"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ[DATABASE]}},
        TASKLOCK={"LOCATION": url, "ON_UNAVAILABLE": "raise"},
        CACHES={
            "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
            "django": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": url},
        },
    )
    django.setup()
    if not Path(os.environ[DATABASE]).exists():
        call_command("migrate", verbosity=0)
