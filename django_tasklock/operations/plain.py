"""Values as JSON has them: what the REST interface answers, and the commands print with ``--json``."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Any

MERGED = ("info", "ref")
"""Attributes whose values are merged into the value that has them: a lock is one object, as it is for people."""


def to_plain(value: Any) -> Any:
    """Convert a value of ``operations`` to what ``json.dumps`` accepts, with its properties, such as ``dead``.

    Datetimes become ISO 8601 text in UTC, enums their values; what JSON does not have, such as the primary key of a row
    in its own type, becomes text.
    """
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    attributes = _attributes(value)
    if attributes is not None:
        plain: dict[str, Any] = {}
        for name in attributes:
            one = to_plain(getattr(value, name))
            plain |= one if name in MERGED else {name: one}
        return plain
    if isinstance(value, Mapping):
        return {str(key): to_plain(one) for key, one in value.items()}
    return [to_plain(one) for one in value] if isinstance(value, Collection) else str(value)


def _attributes(value: Any) -> list[str] | None:
    """Return the names of the fields and properties of a dataclass or named tuple; ``None`` for another value."""
    if dataclasses.is_dataclass(value):
        fields = [field.name for field in dataclasses.fields(value)]
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        fields = list(value._fields)
    else:
        return None
    return fields + [name for name, one in vars(type(value)).items() if isinstance(one, property)]
