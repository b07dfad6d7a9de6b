"""The tasks of the README's section "With Celery", as they stand there; their bodies wait for a gate.

``DEFINED`` has what the examples define, ``USES`` the statements that use it, an example each.
"""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path
from typing import Any

from django.db import transaction

from django_tasklock import StateGuard
from tests.support.celery_site.journal import ENVIRONMENT
from tests.support.celery_site.tasks import hold_here
from tests.testapp.models import Video

__all__ = ["DEFINED", "USES", "gate"]

README = Path(__file__).parents[3] / "README.md"


def gate() -> Path:
    """The file that lets all bodies go."""
    return Path(os.environ[ENVIRONMENT] + ".gate")


def body(task: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """What every ``...`` of the examples does here."""
    return hold_here(task, until=str(gate()), arguments=arguments)


def examples() -> list[ast.Module]:
    """The code blocks of the section."""
    section = README.read_text("utf-8").split("\n## With Celery\n")[1].split("\n## ")[0]
    return [ast.parse(code) for code in re.findall(r"```python\n(.*?)```", section, re.DOTALL)]


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
for _example in examples():
    _made = [filled(node) if isinstance(node, ast.FunctionDef) else node for node in _example.body]
    _definitions = [node for node in _made if isinstance(node, ast.FunctionDef | ast.ImportFrom)]
    _uses = [node for node in _made if node not in _definitions]
    exec(compile(ast.fix_missing_locations(ast.Module(_definitions, [])), str(README), "exec"), DEFINED)
    USES.append(compile(ast.fix_missing_locations(ast.Module(_uses, [])), str(README), "exec"))
