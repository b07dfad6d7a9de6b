"""The tasks of docs/tasks.md, as they stand there; their bodies wait for a gate.

``DEFINED`` has what the recipes define, ``USES`` the statements that use it, a recipe each.
"""

from __future__ import annotations

import ast
import os
from pathlib import Path
from typing import Any

from django.db import transaction

from django_tasklock import StateGuard
from tests.support.celery_site.journal import ENVIRONMENT
from tests.support.celery_site.tasks import hold_here
from tests.support.pages import DOCS, code_of
from tests.testapp.models import Video

__all__ = ["DEFINED", "USES", "gate"]

PAGE = DOCS / "tasks.md"


def gate() -> Path:
    """The file that lets all bodies go."""
    return Path(os.environ[ENVIRONMENT] + ".gate")


def body(task: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """What every ``...`` of the recipes does here."""
    return hold_here(task, until=str(gate()), arguments=arguments)


def recipes() -> list[ast.Module]:
    """The code of each section. What is imported from the reader's own app is this one's here."""
    sections = [line.removeprefix("## ") for line in PAGE.read_text("utf-8").splitlines() if line.startswith("## ")]
    read = [ast.parse("\n".join(code_of(PAGE, section))) for section in sections]
    for recipe in read:
        recipe.body = [
            node
            for node in recipe.body
            if not (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("videos."))
        ]
    return read


def filled(function: ast.FunctionDef) -> ast.FunctionDef:
    """A function whose ``...`` calls ``body``."""
    call = ast.parse(f"def f(): return body({function.name!r}, dict(locals()))").body[0]
    assert isinstance(call, ast.FunctionDef)
    function.body = call.body
    return function


DEFINED: dict[str, Any] = {
    "__name__": __name__,
    "body": body,
    "StateGuard": StateGuard,
    "Video": Video,
    "transaction": transaction,
}
USES: list[Any] = []
for _recipe in recipes():
    _made = [filled(node) if isinstance(node, ast.FunctionDef) else node for node in _recipe.body]
    _definitions = [node for node in _made if isinstance(node, ast.FunctionDef | ast.ImportFrom)]
    _uses = [node for node in _made if node not in _definitions]
    exec(compile(ast.fix_missing_locations(ast.Module(_definitions, [])), str(PAGE), "exec"), DEFINED)
    USES.append(compile(ast.fix_missing_locations(ast.Module(_uses, [])), str(PAGE), "exec"))
