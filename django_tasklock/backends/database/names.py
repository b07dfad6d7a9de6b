"""Names in columns: a key that finds their row, and a text in ASCII for people, which every character set can hold."""

from __future__ import annotations

import hashlib
import re

_LONGEST = 255  # characters of the columns
_ESCAPED = re.compile(r"\\[xuU]((?<=x)[0-9a-f]{2}|(?<=u)[0-9a-f]{4}|(?<=U)000[0-9a-f]{5}|(?<=U)0010[0-9a-f]{4})")


def key_of(name: str) -> str:
    """Return the primary key of a name: no collation takes two of them for one."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()


def in_ascii(text: str, longest: int = _LONGEST) -> str:
    """Return what a column keeps of a name, or of what is said: with escapes such as ``\\u5f71``."""
    return text.encode("ascii", "backslashreplace").decode()[:longest]


def storable(text: str) -> bool:
    """Return whether a column can have a text: PostgreSQL refuses NUL, and no database half of a surrogate pair."""
    return "\0" not in text and not any("\ud800" <= one <= "\udfff" for one in text)


def unescaped(text: str) -> str:
    """Return the text of which ``in_ascii`` made this one, if that had no backslash itself and was not too long."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)


def name_of(text: str, key: str) -> str | None:
    """Return the name of which ``in_ascii`` made the text, as the key confirms; ``None`` if it was too long."""
    return next((name for name in (text, unescaped(text)) if key_of(name) == key), None)
