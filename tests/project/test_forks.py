"""What happens after a fork stands in one list, and nothing registers itself by being imported."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from textwrap import dedent

import django_tasklock
from django_tasklock.process import AFTER_FORK
from tests.support.public import script

PACKAGE = Path(django_tasklock.__file__).parent


def test_every_module_that_has_something_to_do_is_in_it() -> None:
    found = set()
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        if any(isinstance(node, ast.FunctionDef) and node.name == "after_fork" for node in tree.body):
            parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
            found.add(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    assert found == set(AFTER_FORK)
    for name in AFTER_FORK:
        assert importlib.import_module(name).after_fork.__doc__


def test_a_child_counts_for_itself_and_holds_nothing() -> None:
    code = """
        import logging, os
        import django
        django.setup()
        logging.disable(logging.WARNING)
        from django_tasklock import TaskLock, counts, force_release_task_lock
        from django_tasklock.locks import holder
        lock = TaskLock("forks:1", lease=30)
        assert lock.acquire()
        assert TaskLock("forks:2").acquire()
        assert force_release_task_lock("forks:2")
        assert counts.pending()
        boot = holder.boot()
        child = os.fork()
        if child == 0:
            mine = [lock.held, holder.boot() == boot, counts.pending()]
            os._exit(0 if mine == [False, False, []] else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert lock.held
        assert lock.release()
    """
    script(dedent(code), DJANGO_SETTINGS_MODULE="tests.settings")
