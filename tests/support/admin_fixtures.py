"""Fixtures of the admin's tests: people, clients, locks. ``pytest_plugins = ["tests.support.admin_fixtures"]``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from django_tasklock.backends import get_backend
from django_tasklock.types import fingerprint
from tests.support.admin_pages import PERMISSIONS, token_of
from tests.support.stores import an_ask, clear, granted

Take = Callable[..., str]


@pytest.fixture
def admin_settings(settings: Any) -> None:
    """What a project with an admin has."""
    settings.ROOT_URLCONF = "tests.urls"
    settings.STATIC_URL = "/static/"
    settings.LANGUAGES = [("en", "English"), ("zh-hans", "简体中文")]
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.middleware.locale.LocaleMiddleware"]


@pytest.fixture
def visitor(db: None) -> Callable[[str], Client]:
    """``visitor(kind)`` is a browser in which somebody of that kind is logged in."""

    def make(kind: str = "operator") -> Client:
        client = Client()
        if kind == "anonymous":
            return client
        user, made = User.objects.get_or_create(
            username=kind, defaults={"is_staff": kind != "nobody", "is_superuser": kind == "root"}
        )
        if made:
            for codename in PERMISSIONS.get(kind, []):
                permission = Permission.objects.get(codename=codename, content_type__app_label="tasklock")
                user.user_permissions.add(permission)
        client.force_login(user)
        return client

    return make


@pytest.fixture
def operator(visitor: Callable[[str], Client]) -> Client:
    """One who may look and release."""
    return visitor("operator")


@pytest.fixture
def locks() -> Iterator[None]:
    """An empty store: the Redis of the run."""
    clear("redis")
    yield
    clear("redis")


@pytest.fixture
def take(locks: None) -> Take:
    """``take(name, token, ttl=, hold=, **holder)`` gives the lock to some other process; the hold's fingerprint."""

    def give(name: str, token: str = "", *, ttl: int = 60_000, hold: int = 3_600_000, **holder: Any) -> str:
        token = token or token_of(name)
        known = {"host": "worker-1", "pid": 42, "task": "videos.process", "task_id": "id-1", **holder}
        ask = an_ask(name, token, ttl=ttl, hold=hold, holder=json.dumps(known, separators=(",", ":")))
        granted(get_backend().acquire(ask))
        return fingerprint(token)

    return give
