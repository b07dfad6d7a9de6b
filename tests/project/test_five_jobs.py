"""The page with five jobs runs, with the other libraries; django-pglock's part where the database is PostgreSQL."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connection

from tests.support import environment
from tests.support.pages import DOCS, Project, blocks_of

pytest_plugins = ["tests.support.page_fixtures"]
POSTGRES = os.environ.get(environment.DATABASE, "").startswith("postgres")


@pytest.fixture
def project(tutorial: Project, tmp_path: Path, db: None) -> Iterator[Project]:
    """The project of the tutorial; on PostgreSQL with a database of its own."""
    copy = tutorial.copy(tmp_path / "site")
    if not POSTGRES:
        yield copy
        return
    with connection._nodb_cursor() as cursor:
        cursor.execute("CREATE DATABASE five_jobs")
        try:
            place = {key: connection.settings_dict[key] for key in ("ENGINE", "USER", "PASSWORD", "HOST", "PORT")}
            copy.add("config/settings.py", f"DATABASES = {{'default': {place | {'NAME': 'five_jobs'}!r}}}")
            yield copy
        finally:
            cursor.execute("DROP DATABASE five_jobs")


@pytest.mark.slow
@pytest.mark.database
@pytest.mark.usefixtures("empty_store")
def test_all_of_them(project: Project) -> None:
    pytest.importorskip("pyrate_limiter", reason="make test-all installs it, or pip install '.[peers]'")
    blocks = blocks_of(DOCS / "five-jobs.md")
    ours = [block for block in blocks if POSTGRES or "import pglock" not in block.code]
    assert len(ours) == len(blocks) - (not POSTGRES)
    project.paste(ours)
