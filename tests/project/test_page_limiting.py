"""The recipes of docs/limiting.md do what they say."""

from __future__ import annotations

from typing import Any

import pytest
from celery import shared_task

from django_tasklock import RateLimiter, current_limiter
from tests.support.pages import DOCS, code_of

pytestmark = [pytest.mark.redis, pytest.mark.django_db(transaction=True)]

PAGE = DOCS / "limiting.md"


def run(section: str, **known: Any) -> dict[str, Any]:
    """The code of one section; each ``...`` calls ``body``."""
    names: dict[str, Any] = {"__name__": __name__, "shared_task": shared_task, **known}
    exec("\n".join(code_of(PAGE, section)).replace("): ...", "): body()"), names)
    return names


@pytest.fixture
def calls() -> list[str]:
    return []


def test_rates(calls: list[str]) -> None:
    RateLimiter("tavily", "100/m").reset()
    found = run("A rate for all processes together", body=lambda: calls.append("research"))
    usage = RateLimiter("tavily", "100/m").usage()
    assert usage.used == 2
    assert 0 < usage.paused <= 30
    found["tavily"].reset()
    found["research"]("fish")
    assert calls == ["research"]
    assert found["tavily"].usage().used == 1


def test_permits(calls: list[str]) -> None:
    RateLimiter("birds", "100/m").reset()
    found = run("At most N at once", body=lambda: calls.append(current_limiter().name))
    found["encode"](7)
    assert calls == ["encode"]
    assert found["birds"].usage().used == 1
