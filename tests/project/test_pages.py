"""Every block of code of every page is run, as a reader would paste it; what is no Python is looked at all the same."""

from __future__ import annotations

import ast
import configparser
import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from django.core.management import get_commands, load_command_class

from tests.support.pages import DOCS, PAGES, ROOT, Block, Project, blocks_of

BLOCKS = [block for page in PAGES for block in blocks_of(page)]
pytest_plugins = ["tests.support.page_fixtures"]

LANGUAGES = {"python", "pycon", "console", "bash", "yaml", "json", "ini", "toml", "sql", "text", "mermaid"}
ELSEWHERE = {
    DOCS / "five-jobs.md",
    DOCS / "tutorial.md",
    DOCS / "testing.md",
    DOCS / "tenants.md",
    *DOCS.glob("migrate/*.md"),
    *ROOT.glob("README*.md"),
}
"""Pages that are not pasted into the project of the tutorial, but in tests of their own."""


def ids(block: Block) -> str:
    return block.where


def of(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages]


def commands() -> Iterator[tuple[Block, list[str]]]:
    """Every command of the blocks of a shell, as words."""
    for block in of("console", "bash"):
        code = block.code.replace("\\\n", " ")
        lines = code.splitlines()
        if block.language == "console":
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        for line in lines:
            for part in re.split(r" (?:&&|\|\||\|) ", line):
                words = shlex.split(part, comments=True)
                while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                    words = words[1:]
                if words:
                    yield block, words


COMMANDS = list(commands())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_is_fenced_and_says_what_it_is(page: Path) -> None:
    """So that nothing escapes the tests of this module: no block is indented, none is without a language."""
    text = page.read_text("utf-8")
    assert {block.language for block in blocks_of(page)} <= LANGUAGES
    outside = re.sub(r"^( *)```.*?^\1```[ ]*$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert "```" not in outside, "a fence that is not closed"
    lists = re.compile(r"^(?:[*+-]|\d+\.|!!!|:::|\?\?\?)")
    inside = False
    for line in outside.splitlines():
        if line and not line.startswith(" "):
            inside = bool(lists.match(line))
        assert inside or not line.startswith("    "), f"indented code: {line}"


def test_tests_that_pages_name_are_there() -> None:
    named = {path for page in PAGES for path in re.findall(r"`(tests/[\w/]+\.py)", page.read_text("utf-8"))}
    assert {path for path in named if not (ROOT / path).exists()} == set()


@pytest.mark.parametrize("block", of("python"), ids=ids)
def test_python_is_python(block: Block) -> None:
    compile(block.code, block.where, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("block", of("yaml", "json", "ini", "toml"), ids=ids)
def test_data_is_data(block: Block) -> None:
    if block.language == "ini":
        for part in re.split(r"(?m)^(?=# /)", block.code):
            configparser.ConfigParser(strict=False, interpolation=None).read_string(part)
    else:
        reads = {"yaml": lambda text: list(yaml.safe_load_all(text)), "json": json.loads, "toml": tomllib.loads}
        assert reads[block.language](block.code)


@pytest.mark.parametrize("block", of("console", "bash"), ids=ids)
def test_the_shell_understands_it(block: Block) -> None:
    lines = block.code
    if block.language == "console":
        lines = "\n".join(line[2:] for line in lines.splitlines() if line.startswith("$ "))
        assert lines, "a command begins with '$ '"
    subprocess.run(["bash", "-n"], input=lines, text=True, check=True, timeout=10)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_management_commands_within_the_text(page: Path) -> None:
    for line in re.findall(r"`(?:python )?manage\.py ([^`]+)`", page.read_text("utf-8")):
        understood(line)


@pytest.mark.parametrize(
    ("block", "words"),
    [
        pytest.param(block, words, id=f"{block.where}-{' '.join(words[:4])}")
        for block, words in COMMANDS
        if "manage.py" in words
    ],
)
def test_management_commands_take_these_arguments(block: Block, words: list[str]) -> None:
    understood(" ".join(shlex.quote(word) for word in words[words.index("manage.py") + 1 :]))


def understood(line: str) -> None:
    """Fail unless that command takes these arguments."""
    name, *arguments = shlex.split(line)
    app = {**get_commands(), "startapp": "django.core"}[name]
    command = load_command_class(app, name)
    command.create_parser("manage.py", name).parse_args(arguments)


@pytest.mark.slow
@pytest.mark.usefixtures("empty_store")
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page not in ELSEWHERE and any(block.page == page for block in of("python", "pycon"))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_a_page_pasted_into_the_project_of_the_tutorial(page: Path, tutorial: Project, tmp_path: Path) -> None:
    tutorial.copy(tmp_path / "site").paste(blocks_of(page))
