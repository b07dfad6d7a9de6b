"""Texts that others chose, as people are shown them: on one line, and nothing in them that a terminal obeys."""

from __future__ import annotations

import re

LIMIT = 255
# Control characters, line and paragraph separators, what turns the direction of writing, halves of surrogate pairs.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: object, limit: int = LIMIT) -> str:
    """Return ``text``, of at most ``limit`` characters, with escapes such as ``\\n`` for what is not to be read but
    obeyed.

    What is printable is left as it is, in any language.
    """
    said = str(text)
    if not said.isprintable():
        said = _UNSAFE.sub(_escaped, said[: limit + 1])
    return said if len(said) <= limit else said[: limit - 1] + "…"


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def without_password(text: str) -> str:
    """Return ``text`` without what stands for name and password in the URLs in it."""
    return re.sub(r"(?i)(password=)[^&\s'\"]*", r"\1...", re.sub(r"//.*@", "//...@", text))
