"""What the tests over HTTP have in common: keys, the prefix, locks to look at. Fixtures are in ``rest_fixtures``."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from django.test import Client

from django_tasklock import TaskLock
from django_tasklock.backends import get_backend
from django_tasklock.types import fingerprint

__all__ = ["BASIC_AND_SESSION", "KEY", "OTHER_KEY", "PREFIX", "RATES", "Api", "Taken", "problem", "url"]

KEY = "k3y-of-grafana-0123456789-0123456789"
OTHER_KEY = "k3y-of-oncall-0123456789-0123456789"
PREFIX = "/api/v1/tasks/"
RATES = {"tasklock_view": None, "tasklock_release": None}
BASIC_AND_SESSION = [
    "rest_framework.authentication.SessionAuthentication",
    "rest_framework.authentication.BasicAuthentication",
]


SECRETS = {KEY, OTHER_KEY}
"""What must be in no body and no header: grows with every lock that a test takes."""


class Api(Client):
    """A client that sends JSON, and nothing at all where nothing is to be sent."""

    def post(self, path: str, data: Any = None, content_type: str = "application/json", **more: Any) -> Any:
        """``curl -X POST``."""
        if data is None:
            return self.generic("POST", path, **more)
        return super().post(path, data, content_type=content_type, **more)

    def request(self, **request: Any) -> Any:
        """The answer, in which no token and no key may be."""
        response = super().request(**request)
        told = response.content.decode() + str(response.headers)
        assert not [secret for secret in SECRETS if secret in told]
        return response


def url(name: str, end: str = "lock") -> str:
    """The end point of one lock, its name escaped wherever it can be."""
    return f"{PREFIX}{quote(name, safe='')}/{end}"


def problem(response: Any, status: int, code: str) -> str:
    """The sentence of an answer that is not a success, and that it has our shape."""
    assert response.status_code == status, response.content
    assert response["Content-Type"] == "application/json"
    assert "no-store" in response["Cache-Control"]
    body = response.json()
    assert body.keys() == {"code", "detail"}
    assert body["code"] == code
    return str(body["detail"])


class Taken:
    """A lock that somebody holds."""

    def __init__(self, name: str, **options: Any) -> None:
        self.lock = TaskLock(name, **{"timeout": 600, "lease": None, **options})
        assert self.lock.acquire(blocking=False)
        self.token = self.lock.token
        SECRETS.add(self.token)
        self.tag = fingerprint(self.token)

    def owned(self) -> bool:
        """Whether its holder still has it, as the store says."""
        record = get_backend().get(self.lock.name)
        return record is not None and record.token == self.token

    def release(self) -> None:
        """By its holder."""
        self.lock.release()
