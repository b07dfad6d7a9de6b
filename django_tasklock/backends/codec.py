"""What stores keep as text, read back without trusting it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from django_tasklock.types import Holder

LONGEST_ROW = 1000
LARGEST = 2**31


def json_object(text: object) -> dict[str, Any]:
    """Return the JSON object in ``text``; an empty one if there is none."""
    try:
        value = json.loads(text)  # type: ignore[arg-type]
    except (TypeError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def holder_of(data: object) -> Holder:
    """Return a holder from decoded JSON, whatever is unknown, missing or of a wrong type there."""
    if not isinstance(data, dict):
        return Holder()
    texts: dict[str, Any] = {
        key: _text(data.get(key, "")) for key in ("host", "boot", "task", "task_id", "proc", "kind")
    }
    return Holder(
        row=_row(data.get("row")),
        pid=_number(data.get("pid")),
        retries=_number(data.get("retries")),
        kept=bool(data.get("kept")),
        limit=_number(data.get("limit")),
        **texts,
    )


def text_of(holder: Holder) -> str:
    """Return a holder as ``holder_of`` reads it."""
    return json.dumps({key: value for key, value in asdict(holder).items() if value}, separators=(",", ":"))


def _text(value: object) -> str:
    """Return it without halves of surrogate pairs, which nothing can write."""
    if not isinstance(value, str | int | float):
        return ""
    try:
        return str(value).encode(errors="backslashreplace").decode()
    except ValueError:  # a number of thousands of digits
        return ""


def _row(value: object) -> str:
    """Return it only if a database can be asked for it."""
    text = value if isinstance(value, str) else ""
    return text if len(text) <= LONGEST_ROW and "\0" not in text and text == _text(text) else ""


def _number(value: object) -> int:
    try:
        number = int(value)  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):
        return 0
    return number if 0 <= number <= LARGEST else 0
