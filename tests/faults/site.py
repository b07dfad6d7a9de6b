"""The Django project of the run: one database, one Redis, and how a worker reaches both."""

from __future__ import annotations

import os
from pathlib import Path

import django
from django.conf import settings

from tests.support.database_url import database

__all__ = ["DATABASE", "FOLDER", "STORE", "folder", "set_up"]

FOLDER = "TASKLOCK_FAULTS_FOLDER"
STORE = "TASKLOCK_FAULTS_STORE"
DATABASE = "TASKLOCK_TEST_DATABASE"
"""A server's URL; by default SQLite, in the folder of the run."""


def folder() -> Path:
    """Where the journals of this run are."""
    return Path(os.environ[FOLDER])


def set_up() -> None:
    """Set Django up for this process, once."""
    if settings.configured:
        return
    url = os.environ.get(DATABASE) or f"sqlite:///{folder() / 'db.sqlite3'}"
    settings.configure(
        SECRET_KEY="for tests only",
        USE_TZ=True,
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        DATABASES={"default": database(url)},
        CACHES={"default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": os.environ[STORE]}},
        INSTALLED_APPS=[
            "django.contrib.auth",
            "django.contrib.contenttypes",
            "django_tasklock",
            "tests.testapp",
        ],
        TASKLOCK={"LOCATION": os.environ[STORE], "METRICS": False},
        LOGGING={"version": 1, "loggers": {"django_tasklock": {"level": "CRITICAL"}}},  # it has much to tell
    )
    django.setup()
