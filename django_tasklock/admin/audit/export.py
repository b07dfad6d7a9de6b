"""The audit trail as a file, streamed while it is read."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from typing import Any

from django.http import StreamingHttpResponse

from django_tasklock.operations.values import Act

FORMATS = {"csv": "text/csv; charset=utf-8", "json": "application/json"}
"""The formats and their media types."""
COLUMNS = ("at", "actor", "action", "name", "reason", "outcome")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def export_response(acts: Iterable[Act], file_format: str) -> StreamingHttpResponse:
    """Return a download of ``acts`` in the format ``wanted``, or in CSV if that is unknown."""
    kind = file_format if file_format in FORMATS else "csv"
    lines = as_json(acts) if kind == "json" else as_csv(acts)
    response = StreamingHttpResponse(lines, content_type=FORMATS[kind])
    response.headers["Content-Disposition"] = f'attachment; filename="tasklock-audit.{kind}"'
    response.headers["Cache-Control"] = "no-store"
    return response


def as_csv(acts: Iterable[Act]) -> Iterator[str]:
    """Yield lines of CSV. A text that a spreadsheet would treat as a formula is prefixed with an apostrophe."""
    writer: Any = csv.writer(_EchoFile())
    yield writer.writerow(COLUMNS)
    for act in acts:
        yield writer.writerow(_escape_formula(text) for text in _to_columns(act).values())


def as_json(acts: Iterable[Act]) -> Iterator[str]:
    """Yield a JSON list, one entry per line."""
    separator = "[\n"
    for act in acts:
        yield separator + json.dumps(_to_columns(act), ensure_ascii=False)
        separator = ",\n"
    yield "\n]\n" if separator != "[\n" else "[]\n"


def _to_columns(act: Act) -> dict[str, str]:
    return {name: act.at.isoformat() if name == "at" else getattr(act, name) for name in COLUMNS}


def _escape_formula(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text


class _EchoFile:
    """A file for the csv module whose ``write`` returns the text."""

    def write(self, text: str) -> str:
        return text
