"""A question's answer: a table in Markdown, its plots, and what failed."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Protocol, TypeVar

from benchmarks.children import ChildFailed
from benchmarks.plots import bars

__all__ = ["Table", "chosen", "spread"]


class _Labelled(Protocol):
    label: str


Kind = TypeVar("Kind", bound=_Labelled)


def spread(values: Sequence[float], digits: int = 2) -> str:
    """``lowest / median / highest``."""
    return " / ".join(f"{value:,.{digits}f}" for value in (min(values), median(values), max(values)))


def chosen(kinds: Sequence[Kind], only: Sequence[str]) -> list[Kind]:
    """Return those whose label contains one of these texts; all if there are none."""
    return [kind for kind in kinds if not only or any(text in kind.label for text in only)]


class Table:
    """Rows under a title."""

    def __init__(self, title: str, *columns: str) -> None:
        self.title = title
        self.columns = columns
        self.rows: list[tuple[str, ...]] = []
        self.plots: dict[str, tuple[str, Mapping[str, Sequence[float]]]] = {}
        self.failed: dict[str, str] = {}

    def add(self, *cells: str) -> None:
        """One row."""
        self.rows.append(cells)

    def plot(self, name: str, title: str, figures: Mapping[str, Sequence[float]]) -> None:
        """A plot of these figures, by label and round."""
        self.plots[name] = title, figures

    def progress(self, text: str) -> None:
        """Say on stderr what is running."""
        print(text, file=sys.stderr, flush=True)

    @contextmanager
    def failures(self, label: str) -> Iterator[None]:
        """Note a measurement that failed under its label, and go on with the others."""
        try:
            yield
        except (ChildFailed, OSError) as error:
            self.fail(label, str(error).strip() or repr(error))

    def fail(self, label: str, reason: str) -> None:
        """Note what went wrong, which makes the whole run fail."""
        self.progress(f"{label} failed: {reason}")
        self.failed[label] = reason.splitlines()[-1]

    def draw(self, directory: Path) -> None:
        """Write the plots, as SVG."""
        directory.mkdir(parents=True, exist_ok=True)
        for name, (title, figures) in self.plots.items():
            (directory / f"{name}.svg").write_text(bars(title, figures), "utf-8")

    def __str__(self) -> str:
        lines = [f"### {self.title}", "", _row(self.columns), "|---|" + "---:|" * (len(self.columns) - 1)]
        lines += [_row(row) for row in self.rows]
        for label, reason in self.failed.items():
            lines += ["", f"FAILED: {label}: {reason}"]
        return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
