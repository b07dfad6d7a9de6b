"""Limiters over HTTP: what is told and done; and whatever a lock is called, its end points are its own."""

from __future__ import annotations

import secrets
from typing import Any

import pytest
from django.urls import resolve, reverse

from django_tasklock import RateLimiter
from django_tasklock.backends import get_backend
from django_tasklock.models import AuditEntry
from django_tasklock.types import AcquireRequest, fingerprint
from tests.support.redis_server import free_port
from tests.support.rest import PREFIX, SECRETS, Api, problem

pytest_plugins = ["tests.support.redis_fixtures", "tests.support.rest_fixtures"]
pytestmark = pytest.mark.django_db


def at(end: str, name: str = "") -> str:
    """The path of an end point, by its name in ``reverse``."""
    return reverse(f"tasklock:{end}", args=[name] if name else [])


def permit(name: str, limit: int = 3) -> str:
    """Somebody far away takes one; the fingerprint."""
    token = secrets.token_hex(16)
    SECRETS.add(token)
    holder = f'{{"host":"worker-1","pid":42,"task":"videos.transcode","task_id":"id-1","limit":{limit}}}'
    get_backend().permits.acquire(AcquireRequest(name, token, 60_000, 3_600_000, holder, limit=limit))
    return fingerprint(token)


class TestLimits:
    def test_what_is_told(self, by_key: Api, name: str) -> None:
        limiter = RateLimiter(name, "1/m", "100/d")
        limiter.acquire()
        limiter.reserve()
        response = by_key.get(at("limit", name))
        assert (response.status_code, response["Cache-Control"]) == (200, "no-store")
        body = response.json()
        assert body["usage"].pop("time").endswith("Z")
        assert 110 < body["usage"].pop("next") < 130
        assert 50 < body["usage"].pop("tail") < 70
        assert body == {
            "name": name, "limiter": name, "tenant": None, "configured": False,
            "rates": ["1/m", "100/d"], "state": "full", "waiting": 1, "tenants": 0, "tenants_seen": [], "history": [],
            "usage": {
                "name": name, "used": 1,
                "windows": [
                    {"rate": "1/m", "window": 60.0, "limit": 1, "used": 1, "ahead": 1},
                    {"rate": "100/d", "window": 86400.0, "limit": 100, "used": 1, "ahead": 1},
                ],
                "paused": 0.0, "share": 1.0, "free": 0, "refused": 0,
            },
        }  # fmt: skip
        listed = by_key.get(at("limits"), {"text": name}).json()
        assert (listed["total"], listed["next"], listed["limits"][0]["rates"]) == (1, None, ["1/m", "100/d"])

    def test_change(self, by_key: Api, name: str) -> None:
        limiter = RateLimiter(name, "10/h")
        limiter.acquire()
        response = by_key.post(at("change-limit", name), {"share": 0.1, "reason": "r"})
        assert (response.json()["share"], response.json()["before"]) == (0.1, 1.0)
        assert limiter.try_acquire() is None
        for wrong in ({}, {"share": 0}, {"share": 1.1}, {"share": "x"}, {"share": None}):
            problem(by_key.post(at("change-limit", name), wrong), 400, "invalid")
        problem(
            by_key.generic("POST", at("change-limit", name), '{"share": NaN}', "application/json"), 400, "parse_error"
        )
        assert limiter.usage().share == 0.1

    def test_unknown(self, by_key: Api, name: str) -> None:
        problem(by_key.get(at("limit", name)), 404, "unknown_limiter")
        problem(by_key.post(at("reset-limit", name)), 404, "unknown_limiter")
        problem(by_key.post(at("change-limit", name), {"share": 1}), 404, "unknown_limiter")
        assert by_key.get(at("limits"), {"name": name}).json()["limits"] == []
        assert AuditEntry.objects.count() == 0
        for wrong in ("x" * 201, "line\nbreak", "\x00"):
            problem(by_key.get(at("limit", wrong)), 400, "invalid_name")
            problem(by_key.post(at("reset-limit", wrong)), 400, "invalid_name")


class TestPermits:
    def test_release_of_one_member(self, by_key: Api, name: str) -> None:
        first, other = permit(name), permit(name)
        response = by_key.post(at("release-permit", name), {"member": first, "reason": "stuck"})
        body = response.json()
        assert (body["outcome"], body["member"]["fingerprint"]) == ("released", first)
        left = by_key.get(at("permits", name)).json()["members"]
        assert [one["fingerprint"] for one in left] == [other]
        problem(by_key.post(at("release-permit", name), {"member": first}), 404, "no_permit")
        problem(by_key.post(at("release-permit", name)), 400, "invalid")
        assert [entry.reason for entry in AuditEntry.objects.filter(name=name)] == ["stuck"]


class TestAddresses:
    @pytest.mark.parametrize("end", ["lock", "release-lock", "ask-release", "waiters"])
    @pytest.mark.parametrize("lock", ["limits", "limits/x/reset", "parked/x/requeue", "sweeps/1", "audit"])
    def test_locks_keep_theirs(self, rest: Any, end: str, lock: str) -> None:
        """Whatever a lock is called, its end points are its own."""
        found = resolve(f"{PREFIX}{lock}/{end}")
        assert (found.url_name, found.kwargs) == (end, {"name": lock})


class TestOutages:
    def test_the_store_is_down(self, by_key: Api, rest: Any, name: str) -> None:
        port = free_port()
        rest(LOCATION=f"redis://127.0.0.1:{port}/0")
        calls = [by_key.get(at(end)) for end in ("limits", "concurrency")]
        calls += [by_key.get(at(end, name)) for end in ("limit", "permits")]
        calls.append(by_key.post(at("reset-limit", name)))
        calls.append(by_key.post(at("change-limit", name), {"share": 1}))
        calls.append(by_key.post(at("release-permit", name), {"member": "x"}))
        for response in calls:
            assert str(port) not in problem(response, 503, "store_unavailable")
            assert response["Retry-After"]
