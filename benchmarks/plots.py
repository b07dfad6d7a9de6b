"""Plots of a run's ratios, as SVG: bars from the least to the greatest round, with the median."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from statistics import median

__all__ = ["bars"]

ROW, LEFT, WIDTH, RIGHT = 24, 300, 380, 60
OURS = ("TaskLock", "ConcurrencyLimiter", "RateLimiter", "OnceTask", "task_lock")
STYLE = """
text { font: 13px sans-serif; fill: #333 } .ours { font-weight: bold }
.bar { fill: #9fa8da } .bar.ours { fill: #3f51b5 }
.range { stroke: #333; stroke-width: 1.5 } .grid { stroke: #ccc }
@media (prefers-color-scheme: dark) { text { fill: #ddd } .range { stroke: #ddd } .grid { stroke: #555 } }
"""


def bars(title: str, figures: Mapping[str, Sequence[float]]) -> str:
    """The plot of some figures, the least first, as SVG."""
    rows = sorted(figures.items(), key=lambda item: median(item[1]))
    scale = _scale([median(values) for _, values in rows])
    height = ROW * (len(rows) + 2)
    width = LEFT + WIDTH + RIGHT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        f'<text x="4" y="16">{escape(title)}</text>',
        f'<line class="grid" x1="{LEFT}" x2="{LEFT}" y1="{ROW}" y2="{height}"/>',
    ]
    for number, (label, values) in enumerate(rows, 1):
        kind = "ours" if label.startswith(OURS) else ""
        y, middle = number * ROW + 4, median(values)
        length, least, most = (_x(value, scale) for value in (middle, min(values), max(values)))
        told = f"{middle:.3g}" if middle <= scale else f"{middle:.3g} →"
        lines += [
            f'<text class="{kind}" x="{LEFT - 6}" y="{y + 13}" text-anchor="end">{escape(label)}</text>',
            f'<rect class="bar {kind}" x="{LEFT}" y="{y}" width="{length:.0f}" height="{ROW - 8}"/>',
            f'<path class="range" d="M{LEFT + least:.0f} {y + 8}H{LEFT + most:.0f}"/>',
            f'<text x="{LEFT + most + 6:.0f}" y="{y + 13}">{told}</text>',
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"


def _scale(medians: Sequence[float]) -> float:
    """The end of the axis: the greatest, unless a few are so far out that nothing else could be told apart."""
    return min(max(medians), 6 * median(medians)) * 1.15


def _x(value: float, scale: float) -> float:
    return min(value, scale) / scale * WIDTH
