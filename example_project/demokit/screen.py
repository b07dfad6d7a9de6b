"""Output of the demo: lines with times, progress bars on a terminal, and a table at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

__all__ = ["Screen", "table"]

WIDTH = 24


class Screen:
    """Print to standard output. Without a terminal, progress is a plain line now and then."""

    def __init__(self, pause: float = 2.0) -> None:
        self.begun = time.monotonic()
        self.pause = pause
        self.terminal = sys.stdout.isatty()
        self.drawn = 0
        self.last: tuple[float, str] = (0.0, "")

    def say(self, text: str) -> None:
        """Print one line with the seconds since the start."""
        self._erase()
        print(f"[{time.monotonic() - self.begun:5.1f}] {text}", flush=True)

    def progress(self, rows: Sequence[tuple[str, int, str]]) -> None:
        """Draw a bar for each (title, percent, state)."""
        if self.terminal:
            self._erase()
            for title, percent, state in rows:
                full = WIDTH * percent // 100
                print(f"        {title[:24]:<24} {'#' * full}{'.' * (WIDTH - full)} {percent:3d} %  {state}")
            self.drawn = len(rows)
            sys.stdout.flush()
            return
        line = " | ".join(
            f"{title[:24]} {state if state == 'ready' else f'{percent} %'}" for title, percent, state in rows
        )
        now = time.monotonic()
        if line != self.last[1] and now - self.last[0] >= self.pause:
            self.last = (now, line)
            self.say(line)

    def settle(self) -> None:
        """Leave the bars as they are; further output goes below them."""
        self.drawn = 0

    def _erase(self) -> None:
        if self.drawn:
            sys.stdout.write(f"\x1b[{self.drawn}A\x1b[J")
            self.drawn = 0


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table with aligned columns, numbers to the right."""
    texts = [[*map(str, row)] for row in rows]
    widths = [max(len(row[n]) for row in [[*head], *texts]) for n in range(len(head))]
    right = [all(isinstance(row[n], int) for row in rows) for n in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        pairs = zip(cells, widths, right, strict=True)
        return "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width) for cell, width, to_right in pairs
        ).rstrip()

    return "\n".join([line(head), line(["-" * width for width in widths]), *map(line, texts)])
