"""Encoding and tolerant decoding of the JSON that stores keep."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from django_tasklock.types import Holder

MAX_ROW_LENGTH = 1000
MAX_NUMBER = 2**31


def json_object(text: object) -> dict[str, Any]:
    """Return the JSON object in ``text``; an empty dict if it is not one."""
    try:
        value = json.loads(text)  # type: ignore[arg-type]
    except (TypeError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def holder_of(data: object) -> Holder:
    """Return a holder from decoded JSON; fields that are unknown, missing or of a wrong type are ignored."""
    if not isinstance(data, dict):
        return Holder()
    return Holder(**{key: read(data[key]) for key, read in _FIELDS.items() if key in data})


def text_of(holder: Holder) -> str:
    """Return the JSON of a holder, as ``holder_of`` reads it."""
    return json.dumps({key: value for key, value in asdict(holder).items() if value}, separators=(",", ":"))


def _text(value: object) -> str:
    """Return a value as text without lone surrogates, which cannot be encoded."""
    if not isinstance(value, str | int | float):
        return ""
    try:
        return str(value).encode(errors="backslashreplace").decode()
    except ValueError:  # a number of thousands of digits
        return ""


def _row(value: object) -> str:
    """Return a value if it can be used in a database query, else an empty string."""
    text = value if isinstance(value, str) else ""
    return text if len(text) <= MAX_ROW_LENGTH and "\0" not in text and text == _text(text) else ""


def _number(value: object) -> int:
    try:
        number = int(value)  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):
        return 0
    return number if 0 <= number <= MAX_NUMBER else 0


_FIELDS: dict[str, Callable[[object], Any]] = {
    **dict.fromkeys(("host", "boot", "task", "task_id", "proc", "kind"), _text),
    **dict.fromkeys(("pid", "retries", "limit"), _number),
    "row": _row,
}
