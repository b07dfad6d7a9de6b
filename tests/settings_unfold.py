"""The tests' settings with the theme django-unfold, and a database of its own."""

from __future__ import annotations

import os

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS

INSTALLED_APPS = ["unfold", *INSTALLED_APPS, "django.contrib.staticfiles"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ.get("UNFOLD_DATABASE", ":memory:")}}
STATIC_URL = "/static/"
ROOT_URLCONF = "tests.support.unfold_visit"
ALLOWED_HOSTS = ["*"]
