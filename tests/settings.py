"""Django settings of the tests, for pytest and for the processes that tests start."""

from __future__ import annotations

import os

from tests.support import environment
from tests.support.database_url import database

environment.settle()
_redis = os.environ[environment.REDIS]

SECRET_KEY = "for tests only"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

DATABASES = {"default": database(os.environ[environment.DATABASE])}

CACHES = {
    "default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": _redis},
    "core": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": _redis},
    "locmem": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
    "dummy": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"},
    "filebased": {
        "BACKEND": "django.core.cache.backends.filebased.FileBasedCache",
        "LOCATION": str(environment.directory() / "cache"),
    },
    "db": {"BACKEND": "django.core.cache.backends.db.DatabaseCache", "LOCATION": "tests_cache"},
}

TASKLOCK = {"LOCATION": _redis}

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django_tasklock",
    "tests.testapp",
    "tests.ports",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
