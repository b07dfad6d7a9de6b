"""Settings of the video site. What differs between machines comes from the environment.

=====================  =============================================================================
``REDIS_URL``          the Redis server, without a database number; default ``redis://127.0.0.1:6379``
``DATA_DIR``           where the SQLite file and the media live; default ``.data`` beside ``manage.py``
``TASKLOCK_LEASE``     seconds until a dead worker's lock is free again; default 60
``MESSAGE_LEASE``      seconds until a dead worker's messages start again; default 60
``TASKLOCK_API_KEYS``  keys for the REST API, separated by commas: ``grafana=secret``
``TASKLOCK_SWEEP``     seconds between two sweeps, where ``celery beat`` runs; default 60
``CATALOGUE_RATE``     calls that the catalogue allows; default ``100/m``
``SECRET_KEY``         set it if others can reach the site
``DEBUG``              ``0`` switches it off; on by default, because ``runserver`` serves media only then
=====================  =============================================================================
"""

from __future__ import annotations

import mimetypes
import os
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent
DATA_DIR = Path(os.environ.get("DATA_DIR") or BASE_DIR / ".data").resolve()
DATA_DIR.mkdir(parents=True, exist_ok=True)
REDIS_URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379").rstrip("/")

DEBUG = os.environ.get("DEBUG", "1") != "0"
SECRET_KEY = os.environ.get("SECRET_KEY", "only for an example on your own machine")
ALLOWED_HOSTS = os.environ.get("ALLOWED_HOSTS", "127.0.0.1,localhost").split(",")

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "django_tasklock",
    "videos",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "config.csp.content_security_policy",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
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

ROOT_URLCONF = "config.urls"
WSGI_APPLICATION = "config.wsgi.application"

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": DATA_DIR / "db.sqlite3",
        # Several workers write at once: take the write lock at BEGIN, and wait for it.
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL",
        },
    },
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": f"{REDIS_URL}/1",
        "KEY_PREFIX": "video_web",
        "TIMEOUT": 3600,
    },
}

TASKLOCK = {
    "LOCATION": f"{REDIS_URL}/2",  # a database of its own: clearing the cache must not hand out locks twice
    "LEASE": float(os.environ.get("TASKLOCK_LEASE", "60")),
    "MESSAGE_LEASE": float(os.environ.get("MESSAGE_LEASE", "60")),
    "RATE_LIMITS": {"catalogue": os.environ.get("CATALOGUE_RATE", "100/m")},  # of all workers together
    "API_KEYS": dict(pair.split("=", 1) for pair in os.environ.get("TASKLOCK_API_KEYS", "").split(",") if pair),
}

CELERY_BROKER_URL = f"{REDIS_URL}/0"
CELERY_TASK_IGNORE_RESULT = True
# A slot that is busy for an hour must not hold further messages.
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BEAT_SCHEDULE = {
    "sweep locks": {
        "task": "django_tasklock.tasks.sweep_locks",
        "schedule": float(os.environ.get("TASKLOCK_SWEEP", "60")),
        "kwargs": {"requeue": True},  # the videos of dead workers are published again
        # After a time without workers there is one message, not a hundred.
        "options": {"expires": 60},
    },
}
# The web page answers within seconds while the broker is down.
CELERY_TASK_PUBLISH_RETRY_POLICY = {"max_retries": 1, "interval_start": 0.2}

STATIC_URL = "static/"
MEDIA_URL = "media/"
MEDIA_ROOT = DATA_DIR / "media"
# Python's own table does not know MPEG segments, and a machine's may take .ts for something else.
mimetypes.add_type("video/mp2t", ".ts")
mimetypes.add_type("application/vnd.apple.mpegurl", ".m3u8")

USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("zh-hans", "简体中文")]

# No inline script or style anywhere, the operators' pages included.
CONTENT_SECURITY_POLICY = (
    "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "loggers": {  # the root logger is Celery's own in a worker, and would print each line again
        "django_tasklock": {"handlers": ["console"], "level": "INFO", "propagate": False},
        "videos": {"handlers": ["console"], "level": "INFO", "propagate": False},
    },
}
