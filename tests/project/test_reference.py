"""The reference is whole: every public name has its page, and each table says what the code says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.apps import apps
from django.contrib.auth import get_permission_codename

from django_tasklock import conf, signals
from django_tasklock.rest.authentication import PERMISSIONS
from tests.support.pages import DOCS, ROOT

DOORS = [
    "django_tasklock",
    "django_tasklock.celery",
    "django_tasklock.operations",
    "django_tasklock.testing",
    "django_tasklock.metrics",
]
REFERENCE = "\n".join(path.read_text("utf-8") for path in sorted(DOCS.glob("reference/*.md")))
NOT_FOR_USERS = {
    "django_tasklock.metrics.after_fork",
    "django_tasklock.metrics.forget",
    "django_tasklock.testing.REMEMBERING",
}


def table(page: str, heading: str = "") -> Iterator[list[str]]:
    """The rows of the tables of a page, or of one that begins with these words."""
    inside = not heading
    for line in (DOCS / page).read_text("utf-8").splitlines():
        if heading and line.startswith("| "):
            inside = inside or line.startswith(f"| {heading} |")
        elif heading and not line:
            inside = False
        if inside and line.startswith("| `"):
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


@pytest.mark.parametrize("door", DOORS)
def test_every_public_name_has_its_page(door: str) -> None:
    module = import_module(door)
    public = getattr(module, "__all__", None) or [
        name for name, found in vars(module).items() if getattr(found, "__module__", "") == door and name[0] != "_"
    ]
    names = {f"{door}.{name}" for name in public} - NOT_FOR_USERS
    assert names, "a door offers something"
    missing = {name for name in names if not re.search(rf"^::: {re.escape(name)}$", REFERENCE, re.MULTILINE)}
    assert missing == set(), "each needs a line '::: name' on a page in docs/reference"


def test_settings() -> None:
    assert {row[0].strip("`"): row[1] for row in table("settings.md", "setting")} == {
        field.name: f"`{_written(field)}`" for field in fields(conf.Settings)
    }


def _written(field: Any) -> str:
    default = field.default if field.default is not MISSING else field.default_factory()
    return f'"{default}"' if isinstance(default, str) else repr(default)


def test_checks() -> None:
    texts = [path.read_text("utf-8") for path in (ROOT / "django_tasklock").rglob("*.py")]
    known = {number for text in texts for number in re.findall(r'"tasklock\.([EWI]\d{3})"', text)}
    rows = re.findall(r"^\| tasklock\.([EWI]\d{3}) \|", (DOCS / "checks.md").read_text("utf-8"), re.MULTILINE)
    assert len(rows) == len(set(rows))
    assert set(rows) == known


def sent() -> dict[str, set[str]]:
    """The keywords with which each signal is sent somewhere."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "django_tasklock").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "signals.send":
                name = ast.unparse(node.args[0]).removeprefix("signals.")
                found.setdefault(name, set()).update(keyword.arg or "**" for keyword in node.keywords)
    return found


def test_signals() -> None:
    rows = {row[0].strip("`"): set(re.findall(r"`(\w+)`", row[1])) for row in table("signals.md", "signal")}
    assert rows == sent()
    assert set(rows) == set(signals.__all__) - {"count", "send"}


def test_permissions() -> None:
    known = set()
    for model in apps.get_app_config("tasklock").get_models():
        options = model._meta
        known |= {f"tasklock.{get_permission_codename(action, options)}" for action in options.default_permissions}
        known |= {f"tasklock.{codename}" for codename, _ in options.permissions}
    assert {row[0].strip("`") for row in table("permissions.md", "permission")} == known


def test_scopes_of_keys() -> None:
    rows = {row[0].strip("`"): set(re.findall(r"`([\w.]+)`", row[1])) for row in table("permissions.md", "scope")}
    assert rows == {scope: set(given) for scope, given in PERMISSIONS.items()}


def test_every_page_is_in_the_navigation() -> None:
    """``make docs`` says so, too, but is not always run."""
    text = (ROOT / ".mkdocs.yml").read_text("utf-8")
    named = set(re.findall(r"([\w/-]+\.md)$", text.partition("\nnav:\n")[2], re.MULTILINE))
    there = {str(Path(page).relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert named == there, "the navigation is in .mkdocs.yml"
    assert yaml.safe_load(text)["docs_dir"] == "docs"
