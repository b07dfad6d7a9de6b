"""The guides from other locks: the code before runs with the other package, the code after with this one."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
from django.db import connection

from tests.support import environment
from tests.support.pages import DOCS, Block, Project, blocks_of

pytest_plugins = ["tests.support.page_fixtures"]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("empty_store")]

PACKAGES = {
    "celery-once": "celery_once",
    "celery-singleton": "celery_singleton",
    "redis-lock": "django_redis",
    "cache-add": "django",
    "django-pglock": "pglock",
    "django-ratelimit": "django_ratelimit",
}
GUIDES = sorted(set(DOCS.glob("migrate/*.md")) - {DOCS / "migrate" / "index.md"})
ON_POSTGRES = [pytest.mark.database, pytest.mark.django_db(transaction=True)]
POSTGRES = os.environ.get(environment.DATABASE, "").startswith("postgres")


def part(guide: Path, heading: str) -> list[Block]:
    """The blocks of one section."""
    lines = guide.read_text("utf-8").splitlines()
    starts = [number for number, line in enumerate(lines, 1) if line.startswith("## ")] + [len(lines) + 1]
    begin = next(number for number in starts if lines[number - 1] == f"## {heading}")
    end = next(number for number in starts if number > begin)
    return [block for block in blocks_of(guide) if begin < block.line < end]


@pytest.mark.parametrize(
    "guide",
    [
        pytest.param(guide, marks=ON_POSTGRES if guide.stem == "django-pglock" else [], id=guide.stem)
        for guide in GUIDES
    ],
)
def test_before(guide: Path, tutorial: Project, tmp_path: Path) -> None:
    if find_spec(PACKAGES[guide.stem]) is None:
        pytest.skip(f"{guide.stem} is not installed: make test-all does, or pip install '.[peers]'")
    project = tutorial.copy(tmp_path / "site")
    if guide.stem != "django-pglock":
        project.paste(part(guide, "Before"))
    elif POSTGRES:
        ours = {key: connection.settings_dict[key] for key in ("ENGINE", "NAME", "USER", "PASSWORD", "HOST", "PORT")}
        project.add("config/settings.py", f"DATABASES = {{'default': {ours!r}}}")
        project.paste(part(guide, "Before"), migrate=False)  # it is the database of these tests
    else:
        pytest.skip("runs on PostgreSQL only")


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_after(guide: Path, tutorial: Project, tmp_path: Path) -> None:
    tutorial.copy(tmp_path / "site").paste(part(guide, "After"))


def test_what_the_guides_have_in_common(tutorial: Project, tmp_path: Path) -> None:
    tutorial.copy(tmp_path / "site").paste(blocks_of(DOCS / "migrate" / "index.md"))
