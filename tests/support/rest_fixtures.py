"""Fixtures for tests over HTTP; they need those of ``tests.support.redis_fixtures`` too."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User

from django_tasklock import TaskLockError, authentication
from tests.support import environment
from tests.support.rest import BASIC_AND_SESSION, KEY, OTHER_KEY, RATES, Api, Taken


@pytest.fixture
def rest(settings: Any, configure: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """The end points under ``PREFIX``, two keys, no throttling. ``rest(LOCATION=..., ...)`` sets ``TASKLOCK`` anew."""
    settings.ROOT_URLCONF = "tests.rest_urls"
    settings.ALLOWED_HOSTS = ["*"]
    monkeypatch.setattr(authentication, "WRONG_KEYS", 10**6)
    settings.REST_FRAMEWORK = {
        "DEFAULT_AUTHENTICATION_CLASSES": BASIC_AND_SESSION,
        "DEFAULT_THROTTLE_RATES": RATES,
    }

    def set_tasklock(**tasklock: Any) -> None:
        usual = {"LOCATION": os.environ[environment.REDIS], "API_KEYS": {"grafana": KEY, "oncall": OTHER_KEY}}
        configure(**{**usual, **tasklock})

    set_tasklock()
    return set_tasklock


@pytest.fixture
def by_key(rest: Any) -> Api:
    """A client that sends the key of grafana, and is refused wherever a CSRF token is needed."""
    return Api(enforce_csrf_checks=True, headers={"authorization": f"Api-Key {KEY}"})


@pytest.fixture
def lock_up() -> Iterator[Callable[..., Taken]]:
    """``lock_up(name, ...)`` holds a lock until the test ends, or somebody takes it away."""
    taken: list[Taken] = []

    def acquire(name: str, **options: Any) -> Taken:
        taken.append(Taken(name, **options))
        return taken[-1]

    yield acquire
    for one in taken:
        with suppress(TaskLockError):  # the test has released it
            one.release()


@pytest.fixture
def user(db: None) -> Callable[..., User]:
    """``user("view_lock", ...)``: one with these permissions, called after them. Its password is ``secret``."""

    def make(*permissions: str, **more: Any) -> User:
        made = User.objects.create_user("_".join(permissions) or "nobody", password="secret", **more)
        found = Permission.objects.filter(content_type__app_label="tasklock", codename__in=permissions)
        assert len(found) == len(permissions)
        made.user_permissions.set(found)
        return made

    return make
