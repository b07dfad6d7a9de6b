"""Texts from outside, made safe to show: on one line, without control characters."""

from __future__ import annotations

import re

LIMIT = 255
# Control characters, line and paragraph separators, marks of the writing direction, halves of surrogate pairs.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: object, limit: int = LIMIT) -> str:
    """Return at most ``limit`` characters of ``text``, with control characters escaped, as in ``\\n``.

    Printable characters of any language stay as they are.
    """
    said = str(text)
    if not said.isprintable():
        said = _UNSAFE.sub(_escaped, said[: limit + 1])
    return said if len(said) <= limit else said[: limit - 1] + "…"


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def without_password(text: str) -> str:
    """Return ``text`` without the user names and passwords of the URLs in it."""
    return re.sub(r"(?i)(password=)[^&\s'\"]*", r"\1...", re.sub(r"//.*@", "//...@", text))
