"""What a store keeps of one rate limiter, as JSON where that is text."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["Entry", "State"]

Entry = list[int]
"""A time and the units that were booked for it."""


class State:
    """What is stored. ``meta``: numbers by name. Rings by window: ``[time, units]``, the oldest first."""

    def __init__(self, text: str = "") -> None:
        data: dict[str, Any] = json.loads(text) if text else {}
        self.meta: dict[str, int] = data.get("meta", {})
        self.free: list[tuple[int, str]] = [(slot, member) for slot, member in data.get("free", ())]
        """Places given back, in order: slot, ``units:serial``."""
        self.rings: dict[str, list[Entry]] = data.get("rings", {})
        self.terms: str = data.get("terms", "")
        """Of the last caller: ``Terms.text()``."""
        self.expires = 0
        """When nothing in it matters any more; not stored."""

    def text(self) -> str:
        """As JSON."""
        data = {"meta": self.meta, "free": self.free, "rings": self.rings, "terms": self.terms}
        return json.dumps(data, separators=(",", ":"))
