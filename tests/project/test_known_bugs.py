"""The table of known bugs names tests that exist, and say which bug they are about."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
TABLE = TESTS.parent / "docs" / "known-bugs.md"
ROWS = re.findall(r"^\| (\d+) \| .* \| (.*) \|$", TABLE.read_text("utf-8"), re.MULTILINE)
NAMED = [(number, node) for number, tests in ROWS for node in re.findall(r"`([^`]+)`", tests)]


@pytest.mark.parametrize(("number", "node"), NAMED, ids=[f"{number}-{node}" for number, node in NAMED])
def test_the_test_is_there(number: str, node: str) -> None:
    """Each is found in its file; a test (not a whole file) names the bug in its docstring."""
    file, *path = node.split("::")
    (where,) = TESTS.rglob(file) if "/" not in file else TESTS.parent.glob(file)
    found: ast.AST = ast.parse(where.read_text("utf-8"))
    for name in path:
        found = next(child for child in ast.iter_child_nodes(found) if getattr(child, "name", None) == name)
    if path:
        assert isinstance(found, ast.ClassDef | ast.FunctionDef)
        assert re.search(rf"8\.{number}\b", ast.get_docstring(found) or ""), f"{node} does not name 8.{number}"


def test_the_table_is_read() -> None:
    """A change of its form must not leave nothing to check."""
    assert len(NAMED) > 25
