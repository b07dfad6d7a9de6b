"""docs/testing.md: its app and its tests, run as a reader would."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.kit_project import SETTINGS, blocks, run_pytest, write

ROOT = Path(__file__).parents[2]
FILES = blocks(ROOT / "docs" / "testing.md")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("reader")
    write(directory, {"settings.py": SETTINGS, **FILES})
    return directory


def test_every_block_of_the_page_is_a_file_of_the_project() -> None:
    page = (ROOT / "docs" / "testing.md").read_text("utf-8")
    assert page.count("```python") == len(FILES)


@pytest.mark.slow
def test_the_page_is_true(project: Path) -> None:
    said = run_pytest(project, "-W", "error")
    assert re.search(r"\d+ passed", said)
