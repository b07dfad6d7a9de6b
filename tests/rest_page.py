"""Makes the tables of docs/rest.md from the table of end points: ``python -m tests.rest_page`` writes them anew.

A table stands between ``<!-- made: end points -->``, or ``<!-- made: fields of locks, lock -->`` with names of end
points, and ``<!-- end -->``. ``tests/doors/test_rest_operators.py`` compares the page.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django_tasklock.rest.table import EndPoint

PAGE = Path(__file__).parents[1] / "docs" / "rest.md"


def made(page: str) -> str:
    """Return the page with all of its tables made anew."""
    return re.sub(r"(<!-- made: (.*?) -->\n).*?(<!-- end -->)", _make, page, flags=re.DOTALL)


def _make(found: re.Match[str]) -> str:
    from django_tasklock.rest.table import END_POINTS

    what = found[2]
    names = what.removeprefix("fields of ").split(", ")
    rows = _end_points(END_POINTS)
    if what != "end points":
        by_name = {point.name: point for point in END_POINTS}
        rows = _fields([by_name[name] for name in names])
    return found[1] + "".join(f"| {' | '.join(row)} |\n" for row in rows) + found[3]


def _end_points(points: Iterable[EndPoint]) -> list[list[str]]:
    rows = [["end point", "action"], ["---"] * 2]
    return rows + [[f"`{point.method} {point.path}`", point.about] for point in points]


def _fields(points: list[EndPoint]) -> list[list[str]]:
    rows = [["query parameter" if points[0].method == "GET" else "field", "default", "meaning"], ["---"] * 3]
    names = dict.fromkeys(name for point in points for name in point.fields)
    names.pop("reason", None)  # the same everywhere, so the page says it once
    for name in names:
        of = [point for point in points if name in point.fields]
        only = "" if len(of) == len(points) else f"only {', '.join(f'`{point.path}`' for point in of)}: "
        rows.append([f"`{name}`", _default(of[0].fields[name]), only + _meaning(of[0].fields[name])])
    return rows


def _default(field: Any) -> str:
    if field.required:
        return "required"
    default = field.default
    return "" if default in ("", None) else f"`{str(default).lower() if isinstance(default, bool) else default}`"


def _meaning(field: Any) -> str:
    from rest_framework.serializers import IntegerField

    parts = [", ".join(f"`{choice}`" for choice in getattr(field, "choices", ()) if choice)]
    if isinstance(field, IntegerField) and field.max_value < 10**6:
        parts.append(f"{field.min_value} to {field.max_value}")
    return "; ".join(filter(None, [*parts, field.help_text]))


if __name__ == "__main__":
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    PAGE.write_text(made(PAGE.read_text("utf-8")), "utf-8")
