"""The examples of the README's section "Limits", as they stand there; and both READMEs have the same code."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from celery import shared_task
from django.test import Client
from django.urls import include, path

from django_tasklock import ConcurrencyLimiter, RateLimiter, StateGuard, current_claim, current_limiter, model_lock
from tests.support.guards import raw_connection
from tests.testapp.models import Video

pytestmark = [pytest.mark.redis, pytest.mark.django_db(transaction=True)]

ROOT = Path(__file__).parents[2]
GUARD = StateGuard(claim_from=["uploading"], claim_as="processing", done="ready", failed="failed")


def blocks(file: str, section: str = "") -> list[str]:
    text = (ROOT / file).read_text("utf-8")
    if section:
        text = text.split(f"\n## {section}\n")[1].split("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def run(number: int, **known: Any) -> dict[str, Any]:
    """One of the section's examples; each ``...`` calls ``body``."""
    code = blocks("README.md", "Limits")[number]
    names: dict[str, Any] = {"__name__": __name__, "shared_task": shared_task, **known}
    exec(code.replace("): ...", "): body()"), names)
    return names


@pytest.fixture
def calls() -> list[str]:
    return []


@pytest.fixture
def search(calls: list[str]) -> Any:
    def search(query: str) -> Any:
        calls.append(query)
        return SimpleNamespace(status_code=429, headers={"Retry-After": "30"})

    return search


def test_there_are_four() -> None:
    assert len(blocks("README.md", "Limits")) == 4


def test_rates(search: Any, calls: list[str]) -> None:
    RateLimiter("tavily", "100/m").reset()
    found = run(0, search=search, body=lambda: calls.append("research"))
    assert calls == ["cats", "dogs"]
    usage = RateLimiter("tavily", "100/m").usage()
    assert usage.used == 2
    assert 0 < usage.paused <= 30
    found["tavily"].reset()
    found["research"]("fish")
    assert calls[2:] == ["research"]
    assert found["tavily"].usage().used == 1


def test_permits(search: Any, calls: list[str]) -> None:
    def counted(query: str) -> None:
        assert ConcurrencyLimiter("search", 3).info().used == 1
        search(query)

    tavily = RateLimiter("tavily", "100/m")
    tavily.reset()
    found = run(1, search=counted, tavily=tavily, body=lambda: calls.append(current_limiter().name))
    found["transcode"](7)
    assert calls == ["birds", "transcode"]
    assert tavily.usage().used == 1


def test_connections() -> None:
    opened = []
    found = run(
        2,
        Video=Video,
        guard=GUARD,
        model_lock=model_lock,
        current_claim=current_claim,
        ffmpeg=lambda video: opened.append((video.status, raw_connection())),
    )
    video = Video.objects.create()
    found["encode"](video.pk)
    assert opened == [("processing", None)]
    video.refresh_from_db()
    assert (video.status, video.progress) == ("ready", 90)


def test_health(settings: Any) -> None:
    urls = ModuleType("urls")
    urls.urlpatterns = run(3, path=path, include=include)["urlpatterns"]  # type: ignore[attr-defined]
    settings.ROOT_URLCONF = urls
    for page in ("/health/db", "/health/locks"):
        assert Client().get(page).status_code == 200


def test_both_languages_have_the_same_code() -> None:
    """But for comments."""
    english, chinese = ([ast.dump(ast.parse(code)) for code in blocks(f"README{name}.md")] for name in ("", ".zh-Hans"))
    assert english == chinese


def test_links_lead_somewhere() -> None:
    for file in (ROOT / "README.md", ROOT / "README.zh-Hans.md", *(ROOT / "docs").glob("*.md")):
        for link in re.findall(r"\]\((?!https?:)([^)#]+)", file.read_text("utf-8")):
            assert (file.parent / link).exists(), f"{file.name}: {link}"
