"""What stores keep as text, read back without trusting it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from django_tasklock.types import Holder

__all__ = ["holder_of", "json_object", "text_of"]


def json_object(text: object) -> dict[str, Any]:
    """The JSON object in ``text``; an empty one if there is none."""
    try:
        value = json.loads(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def holder_of(data: object) -> Holder:
    """A holder from decoded JSON, whatever is unknown, missing or of a wrong type there."""
    if not isinstance(data, dict):
        return Holder()
    texts = {key: str(data.get(key, "")) for key in ("host", "boot", "task", "task_id", "proc", "row")}
    return Holder(
        pid=_number(data.get("pid")),
        retries=_number(data.get("retries")),
        kept=bool(data.get("kept")),
        limit=_number(data.get("limit")),
        **texts,
    )


def text_of(holder: Holder) -> str:
    """A holder as ``holder_of`` reads it."""
    return json.dumps({key: value for key, value in asdict(holder).items() if value}, separators=(",", ":"))


def _number(value: object) -> int:
    try:
        return int(value)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError, OverflowError):
        return 0
