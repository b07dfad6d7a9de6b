"""``State``: what a store keeps of one rate limiter, as JSON where that is text."""

from __future__ import annotations

import json
from typing import Any

from django_tasklock.backends.contract.rates import Terms

Entry = list[int]
"""A time and the units that were booked for it."""


class State:
    """One limiter as it is stored. ``meta``: numbers by name. Rings by window: ``[time, units]``, the oldest first."""

    def __init__(self, text: str = "") -> None:
        data: dict[str, Any] = json.loads(text) if text else {}
        self.meta: dict[str, int] = data.get("meta", {})
        self.free: list[tuple[int, str]] = [(slot, member) for slot, member in data.get("free", ())]
        """Slots given back, in order: slot, ``units:serial``."""
        self.rings: dict[str, list[Entry]] = data.get("rings", {})
        self.line: list[list[int]] = data.get("line", [])
        """Slots of the line that nobody has claimed yet, in order: slot, units."""
        self.gone: dict[str, int] = data.get("gone", {})
        """Numbers that were given back (1), and those under which such slots were taken again (0)."""
        self.terms: str = data.get("terms", "")
        """The terms of the last caller: ``Terms.text()``."""
        self.rule: str = data.get("rule", "")
        """The terms in force: ``Terms.rule()``; empty: nobody has said his."""
        self.votes: dict[str, int] = data.get("votes", {})
        """``process rule``: when that process said last that it has these terms."""
        self.expires = 0
        """When nothing in it matters any more; not stored."""

    def under(self, terms: Terms) -> str:
        """Return what to keep as ``terms`` of a caller who had these."""
        return terms.under(self.rule).text() if self.rule else terms.text()

    def text(self) -> str:
        """Return the state as JSON."""
        data = {"meta": self.meta, "free": self.free, "rings": self.rings, "terms": self.terms}
        if self.line:
            data["line"] = self.line
        if self.gone:
            data["gone"] = self.gone
        if self.rule:
            data |= {"rule": self.rule, "votes": self.votes}
        return json.dumps(data, separators=(",", ":"))
