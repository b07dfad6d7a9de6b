"""A project with ``USE_TZ = False``: its tables have no zones, pages and REST show the same moments all the same."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client

from django_tasklock import RateLimiter, operations
from django_tasklock.operations.limits.rates import pause_limit, reset_limit
from django_tasklock.operations.values import Actor
from tests.support.rest import PREFIX, Api

pytest_plugins = ["tests.support.redis_fixtures", "tests.support.admin_fixtures", "tests.support.rest_fixtures"]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("admin_settings", "locks", "naive")]

ME = Actor("me")
A_MINUTE = timedelta(minutes=1)


@pytest.fixture
def naive(settings: Any) -> None:
    settings.USE_TZ, settings.TIME_ZONE = False, "Asia/Shanghai"


@pytest.mark.parametrize(
    "page",
    [
        "lock/",
        "lock/overview/",
        "sweepentry/",
        "auditentry/",
        "auditentry/?at__gte=2026-01-01",
        "ratelimit/api/change/",
    ],
)
def test_pages_are_shown(visitor: Any, page: str) -> None:
    RateLimiter("api", "1/m").acquire()
    pause_limit("api", 60, by=ME)
    operations.sweep(by=ME, pause=0)
    client: Client = visitor("root")
    assert client.get(f"/admin/tasklock/{page}").status_code == 200


def test_times_that_are_shown_are_those_of_the_deed(by_key: Api) -> None:
    RateLimiter("api", "1/m").acquire()
    reset_limit("api", by=ME)
    [act] = by_key.get(PREFIX + "audit").json()["acts"]
    assert act["at"].endswith("Z")
    assert abs(datetime.fromisoformat(act["at"]) - datetime.now(UTC)) < A_MINUTE


@pytest.mark.parametrize("written", ["{:%Y-%m-%dT%H:%M:%SZ}", "{:%Y-%m-%dT%H:%M:%S}"], ids=["utc", "of the project"])
def test_a_time_that_is_given_narrows(by_key: Api, written: str) -> None:
    RateLimiter("api", "1/m").acquire()
    reset_limit("api", by=ME)
    for minutes, found in ((-5, 1), (5, 0)):
        at = datetime.now(UTC) + timedelta(minutes=minutes)
        if not written.endswith("Z}"):
            at += timedelta(hours=8)
        acts = by_key.get(PREFIX + "audit", {"since": written.format(at)}).json()["acts"]
        assert len(acts) == found
