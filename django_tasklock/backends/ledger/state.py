"""The stored state of one rate limiter, in memory and as JSON."""

from __future__ import annotations

import json
from typing import Any

Entry = list[int]
"""A time, and the units booked for it."""


class State:
    """The state of one limiter. ``meta``: numbers by key. ``rings``: ``[time, units]`` by window, the oldest first."""

    def __init__(self, text: str = "") -> None:
        data: dict[str, Any] = json.loads(text) if text else {}
        self.meta: dict[str, int] = data.get("meta", {})
        self.free: list[tuple[int, str]] = [(slot, member) for slot, member in data.get("free", ())]
        """Slots given back, in order: the slot and ``units:serial``."""
        self.rings: dict[str, list[Entry]] = data.get("rings", {})
        self.line: list[list[int]] = data.get("line", [])
        """Slots of the line that are not taken yet, in order: the slot and its units."""
        self.gone: dict[str, int] = data.get("gone", {})
        """Numbers of slots: 1 if the slot was given back under it, 0 if the slot was booked again under it."""
        self.terms: str = data.get("terms", "")
        """The terms of the last caller: ``Terms.text()``."""
        self.expires = 0
        """When the state can be deleted, in microseconds since 1970; not stored."""

    def to_json(self) -> str:
        """Return the state as JSON."""
        data = {"meta": self.meta, "free": self.free, "rings": self.rings, "terms": self.terms}
        if self.line:
            data["line"] = self.line
        if self.gone:
            data["gone"] = self.gone
        return json.dumps(data, separators=(",", ":"))
