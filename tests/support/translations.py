"""What is to be translated, what is, and what was compiled, read without the gettext tools."""

from __future__ import annotations

import ast
import gettext
import re
from collections.abc import Iterator
from pathlib import Path

from django.utils.translation.template import templatize

import django_tasklock

__all__ = ["catalog", "messages_in_code", "po_file"]

PACKAGE = Path(django_tasklock.__file__).parent
CALLS = {"_", "gettext", "gettext_lazy", "gettext_noop"}
PLURALS = {"ngettext", "ngettext_lazy"}
FOLDER = PACKAGE / "locale" / "zh_Hans" / "LC_MESSAGES"


def messages_in_code() -> dict[str, set[str]]:
    """Message (the singular, where there is a plural) to the files it stands in."""
    found: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for message in _in_python(path.read_text(encoding="utf-8")):
            found.setdefault(message, set()).add(str(path))
    for path in PACKAGE.rglob("*.html"):
        pseudo = templatize(path.read_text(encoding="utf-8"))
        for message in re.findall(r"""n?gettext\(u?('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\"{3}.*?\"{3})""", pseudo):
            found.setdefault(ast.literal_eval(message), set()).add(str(path))
        for message in re.findall(r"""_\(u?('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\)""", pseudo):
            found.setdefault(ast.literal_eval(message), set()).add(str(path))
    return found


def _in_python(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        if node.func.id in CALLS | PLURALS and node.args and isinstance(node.args[0], ast.Constant):
            value = node.args[0].value
            if isinstance(value, str):
                yield value


def po_file() -> dict[str, str]:
    """The source of the catalog: message to translation, the first form of a plural."""
    found: dict[str, str] = {}
    for block in (FOLDER / "django.po").read_text(encoding="utf-8").split("\n\n"):
        assert "fuzzy" not in block, block
        parts: dict[str, str] = {}
        word = ""
        for line in block.splitlines():
            if line.startswith("#"):
                continue
            if not line.startswith('"'):
                word, _, line = line.partition(" ")
            parts[word] = parts.get(word, "") + ast.literal_eval(line)
        assert parts["msgid"] not in found, f"twice: {parts['msgid']}"
        found[parts["msgid"]] = parts["msgstr[0]"] if "msgid_plural" in parts else parts["msgstr"]
    return found


def catalog() -> dict[str, str]:
    """What Django reads."""
    with (FOLDER / "django.mo").open("rb") as file:
        read = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]
    return {key if isinstance(key, str) else key[0]: text for key, text in read.items()}
