"""Tables of ratios, in Markdown."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

from benchmarks.adapters import Refused
from benchmarks.children import ChildFailed

__all__ = ["Table", "spread"]


def spread(values: Sequence[float], digits: int = 2) -> str:
    """``min / median / max``."""
    if not values:
        return "-"
    return " / ".join(f"{value:,.{digits}f}" for value in (min(values), median(values), max(values)))


class Table:
    """Rows under a title; the numbers behind them; what failed."""

    def __init__(self, title: str, columns: list[str]) -> None:
        self.title = title
        self.columns = columns
        self.rows: list[tuple[str, ...]] = []
        self.data: dict[str, Any] = {}
        self.failed: dict[str, str] = {}

    def add(self, *cells: str) -> None:
        """One row."""
        self.rows.append(cells)

    def progress(self, text: str) -> None:
        """Say on stderr what is running."""
        print(text, file=sys.stderr)

    @contextmanager
    def failures(self, label: str) -> Iterator[None]:
        """Note a failed measurement under its adapter and go on with the others."""
        try:
            yield
        except (ChildFailed, Refused, OSError) as error:
            reason = str(error).strip() or repr(error)
            print(f"{label} failed: {reason}", file=sys.stderr)
            self.failed[label] = reason.splitlines()[-1]

    def __str__(self) -> str:
        lines = [f"### {self.title}", "", _row(self.columns), "|---|" + "---:|" * (len(self.columns) - 1)]
        lines += [_row(row) for row in self.rows]
        for label, reason in self.failed.items():
            lines += ["", f"FAILED: {label}: {reason}"]
        return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
