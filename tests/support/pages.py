"""The pages people read, as blocks of code; and a new project into which they are pasted, as a reader would.

A block of Python that begins with ``# videos/tasks.py`` is added to that file, any other one is typed into one shell,
page by page, in order. ``<!-- not run: why -->`` before a block leaves it out of that.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.support import environment

__all__ = ["PAGES", "ROOT", "Block", "Project", "blocks_of", "code_of"]

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "README.zh-Hans.md", *sorted(DOCS.rglob("*.md"))]

FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^(?P=indent)```[ ]*$", re.MULTILINE | re.DOTALL
)
NOT_RUN = re.compile(r"<!-- not run: ([^>]+?) -->\s*\Z")
FILE = re.compile(r"# ((?:[\w-]+/)*[\w-]+\.py)\n")
SERVER = re.compile(r"redis://localhost:6379/\d+")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    code: str
    not_run: str | None
    """Why it is not run."""

    @property
    def file(self) -> str | None:
        """The file it is to be added to."""
        named = FILE.match(self.code) if self.language == "python" else None
        return (
            None
            if named is None
            else {"settings.py": "config/settings.py", "urls.py": "config/urls.py"}.get(named[1], named[1])
        )

    @property
    def where(self) -> str:
        """The page and the line, for people."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """Return all fenced blocks of a page, in order."""
    text = page.read_text("utf-8")
    found = []
    for match in FENCE.finditer(text):
        why = NOT_RUN.search(text[: match.start()])
        code = "".join(line.removeprefix(match["indent"]) for line in match["code"].splitlines(keepends=True))
        line = text.count("\n", 0, match.start()) + 2
        found.append(Block(page, line, match["language"], code, why and why[1]))
    return found


def code_of(page: Path, section: str = "", language: str = "python") -> list[str]:
    """Return the code of a page, or of one of its sections."""
    text = page.read_text("utf-8")
    if section:
        text = text.split(f"\n## {section}\n")[1].split("\n## ")[0]
    return [match["code"] for match in FENCE.finditer(text) if match["language"] == language]


RUNNER = """
import ast, asyncio, doctest, inspect, json, sys
import django

django.setup()
names = {"__name__": "__console__"}
with asyncio.Runner() as runner:
    for where, language, code in json.load(sys.stdin):
        if language == "pycon":
            test = doctest.DocTestParser().get_doctest(code, names, where, where, 0)
            runs = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
            if runs.run(test, clear_globs=False).failed:
                raise SystemExit(f"{where}: not what the page says")
            names = test.globs
            continue
        above = "\\n" * (int(where.rpartition(":")[2]) - 1)
        compiled = compile(above + code, where, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        try:
            result = eval(compiled, names)
            if inspect.iscoroutine(result):
                runner.run(result)
        except BaseException as problem:
            raise SystemExit(f"{where}: {type(problem).__name__}: {problem}") from problem
"""


class Project:
    """A project of a reader's: ``startproject config .`` and ``startapp videos``, and what pages say."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def start(self) -> Self:
        """Make it, with nothing of ours in it."""
        self.run("-m", "django", "startproject", "config", ".")
        self.run("manage.py", "startapp", "videos")
        return self

    def copy(self, directory: Path) -> Project:
        """Return a copy of it in that directory."""
        shutil.copytree(self.directory, directory, dirs_exist_ok=True)
        return Project(directory)

    def add(self, file: str, code: str) -> None:
        """Add code to a file of it, which is made if it is not there."""
        path = self.directory / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{path.read_text('utf-8') if path.exists() else ''}\n{self.here(code)}\n", "utf-8")

    def here(self, code: str) -> str:
        """Return it with the Redis of this test."""
        return SERVER.sub(os.environ[environment.REDIS], code)

    def paste(self, blocks: Iterable[Block], *, migrate: bool = True) -> None:
        """Paste blocks of Python in their order. Whenever files are complete, migrate and check."""
        for files, shell in _segments(
            block for block in blocks if block.language in ("python", "pycon") and not block.not_run
        ):
            for block in files:
                self.add(block.file or "", block.code)
            if files and migrate:
                self.migrate()
            if shell:
                self.shell([(block.where, block.language, block.code) for block in shell])

    def migrate(self) -> None:
        """Migrate and check, as every page has it."""
        self.run(
            "-c",
            "import django; django.setup()\n"
            "from django.core.management import call_command\n"
            "call_command('makemigrations', 'videos', verbosity=0)\n"
            "call_command('migrate', verbosity=0); call_command('check')",
        )

    def shell(self, typed: list[tuple[str, str, str]]) -> str:
        """Type blocks into a shell; what it said."""
        return self.run(
            "-c", RUNNER, said=json.dumps([(where, language, self.here(code)) for where, language, code in typed])
        )

    def run(self, *arguments: str, said: str = "") -> str:
        """Run Python in it; what it said. Fails if that does."""
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.directory,
            env={**os.environ, "PYTHONPATH": str(ROOT), "DJANGO_SETTINGS_MODULE": "config.settings"},
            input=said,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr


def _segments(blocks: Iterable[Block]) -> Iterator[tuple[list[Block], list[Block]]]:
    """Files, then what is typed, then files again..."""
    files: list[Block] = []
    shell: list[Block] = []
    for block in blocks:
        if block.file is not None and shell:
            yield files, shell
            files, shell = [], []
        (shell if block.file is None else files).append(block)
    yield files, shell
