"""Names in columns: a hash as the primary key, and an ASCII text for people, which every character set can store."""

from __future__ import annotations

import hashlib
import re

_LONGEST = 255  # characters of the columns
_ESCAPED = re.compile(r"\\[xuU]((?<=x)[0-9a-f]{2}|(?<=u)[0-9a-f]{4}|(?<=U)000[0-9a-f]{5}|(?<=U)0010[0-9a-f]{4})")


def key_of(name: str) -> str:
    """Return the primary key of a name: a hash, so that no collation treats two names as equal."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()


def in_ascii(text: str, longest: int = _LONGEST) -> str:
    """Return a name or another text as a column stores it: with escapes such as ``\\u5f71``, and truncated."""
    return text.encode("ascii", "backslashreplace").decode()[:longest]


def storable(text: str) -> bool:
    """Return whether a column can store a text: PostgreSQL refuses NUL, and every database a lone surrogate."""
    return "\0" not in text and not any("\ud800" <= one <= "\udfff" for one in text)


def unescaped(text: str) -> str:
    """Undo ``in_ascii``, for a text that had no backslash and was not truncated."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)


def name_of(text: str, key: str) -> str | None:
    """Return the name that ``in_ascii`` encoded as ``text``, confirmed by its key; ``None`` if it was truncated."""
    return next((name for name in (text, unescaped(text)) if key_of(name) == key), None)
