"""Small bar charts, drawn on the server as SVG without text, and coloured by a stylesheet."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from django.utils.functional import cached_property
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe

WIDTH, HEIGHT = 1000, 100
"""Units of the drawing, which is stretched to the available size."""
GAP = 0.15
"""The share of a bar's width that is left free."""
_STEPS = (1, 1.5, 2, 3, 4, 5, 6, 8, 10, 15)


@dataclass(frozen=True, slots=True)
class Series:
    """One colour of the bars; the classes in the stylesheet are ``tasklock-bar-1``, ``tasklock-bar-2``..."""

    label: str
    values: Sequence[float]


@dataclass(frozen=True)
class BarChart:
    """Stacked bars, one for each of ``labels``, with one segment per series, the first at the bottom.

    Each bar has a tooltip, and the drawing a label for screen readers (``title``); a table beside it has the numbers.
    """

    title: str
    labels: Sequence[str]
    series: Sequence[Series]
    format_value: Callable[[float], str] = "{:g}".format
    """Formats a value."""

    @cached_property
    def empty(self) -> bool:
        """Return whether all values are zero."""
        return not any(any(one.values) for one in self.series)

    @cached_property
    def top(self) -> float:
        """Return the value at the upper edge: a round number that no bar exceeds."""
        return round_up(max(map(sum, zip(*(one.values for one in self.series), strict=True)), default=0.0))

    @property
    def top_label(self) -> str:
        """The value at the upper edge, as a label."""
        return self.format_value(self.top)

    @property
    def middle_label(self) -> str:
        """The value at half height, as a label."""
        return self.format_value(self.top / 2)

    @cached_property
    def rows(self) -> list[tuple[str, list[str]]]:
        """Return the bars as rows of a table: label and values."""
        return [
            (label, [self.format_value(one.values[index]) for one in self.series])
            for index, label in enumerate(self.labels)
        ]

    @cached_property
    def svg(self) -> SafeString:
        """Return the SVG drawing, which needs neither scripts nor inline styles."""
        box = f'viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none"'
        parts = [f'<svg class="tasklock-plot" {box} role="img" aria-label="{escape(self.title)}">']
        parts += [
            f'<line class="tasklock-grid" x1="0" x2="{WIDTH}" y1="{y}" y2="{y}" vector-effect="non-scaling-stroke"/>'
            for y in (0, HEIGHT // 2, HEIGHT)
        ]
        for index, label in enumerate(self.labels):
            parts.append(f"<g><title>{escape(self._tooltip(index, label))}</title>{self._draw_bar(index)}</g>")
        return mark_safe("".join([*parts, "</svg>"]))  # noqa: S308  # texts from outside are escaped

    def _draw_bar(self, index: int) -> str:
        slot_width = WIDTH / len(self.labels)
        left, width = index * slot_width + slot_width * GAP / 2, slot_width * (1 - GAP)
        values = [one.values[index] for one in self.series]
        box = f'x="{index * slot_width:.2f}" y="0" width="{slot_width:.2f}" height="{HEIGHT}"'
        background = f'<rect class="tasklock-bar-room" {box}/>'
        parts = [background]  # so that the tooltip also shows above the bar
        for number, (value, cumulative) in enumerate(zip(values, accumulate(values), strict=True), 1):
            if value > 0:
                y, height = HEIGHT * (1 - cumulative / self.top), HEIGHT * value / self.top
                parts.append(
                    f'<rect class="tasklock-bar-{number}" x="{left:.2f}" y="{y:.2f}" width="{width:.2f}"'
                    f' height="{height:.2f}"/>'
                )
        return "".join(parts)

    def _tooltip(self, index: int, label: str) -> str:
        values = [f"{one.label} {self.format_value(one.values[index])}" for one in self.series]
        return f"{label}: {', '.join(values)}"


def round_up(value: float) -> float:
    """Return the next round number, at most half as much again as ``value``; 1 for 0 and for infinity."""
    if not value > 0 or math.isinf(value):
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return next(step * unit for step in _STEPS if step * unit >= value)
