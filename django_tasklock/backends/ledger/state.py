"""The stored state of one rate limiter, in memory and as JSON."""

from __future__ import annotations

import json
from typing import Any

Entry = list[int]
"""A slot and its units; in a ring also the serial number of its owner."""


class State:
    """The state of one limiter. ``meta``: numbers by key. ``rings``: bookings by window, the oldest first."""

    def __init__(self, text: str = "") -> None:
        data: dict[str, Any] = json.loads(text) if text else {}
        self.meta: dict[str, int] = data.get("meta", {})
        self.rings: dict[str, list[Entry]] = data.get("rings", {})
        self.free: list[Entry] = data.get("free", [])
        """Slots that were given back, in order."""
        self.line: list[Entry] = data.get("line", [])
        """Slots in the line that are not taken yet, in order."""
        self.terms: str = data.get("terms", "")
        """The terms of the last caller: ``Terms.text()``."""
        self.expires = 0
        """When the state can be deleted, in microseconds since 1970; not stored."""

    def to_json(self) -> str:
        """Return the state as JSON."""
        names = "meta", "rings", "free", "line", "terms"
        return json.dumps({name: getattr(self, name) for name in names}, separators=(",", ":"))
