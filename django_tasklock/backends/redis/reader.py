"""Parsers of Redis replies: hiredis's, or one in Python with the same interface."""

from __future__ import annotations

from typing import Any

from redis._parsers import BaseParser
from redis.exceptions import InvalidResponse
from redis.utils import HIREDIS_AVAILABLE


class PlainReader:
    """A parser in Python with the interface of hiredis's: ``feed`` it data, ``gets`` returns complete replies."""

    def __init__(self) -> None:
        self._data = b""
        self._at = 0
        self._arrays: list[tuple[list[Any], int]] = []  # incomplete arrays with their final length

    def feed(self, data: bytes) -> None:
        """Add received data."""
        self._data = self._data[self._at :] + data
        self._at = 0

    def gets(self) -> Any:
        """Return the next reply, an error reply as an exception object; False if it is not complete yet."""
        while (end := self._data.find(b"\r\n", self._at)) >= 0:
            value = self._parse_value(self._data[self._at : self._at + 1], self._data[self._at + 1 : end], end + 2)
            if value is False:
                return False
            while self._arrays and value is not self._arrays[-1][0]:
                items, size = self._arrays[-1]
                items.append(value)
                if len(items) < size:
                    break
                self._arrays.pop()
                value = items
            else:
                if not self._arrays:
                    return value
        return False

    def _parse_value(self, kind: bytes, line: bytes, after: int) -> Any:
        """Parse one value, or the beginning of an array; False if more data is needed."""
        value: Any
        if kind == b"$" and (size := int(line)) >= 0:
            if len(self._data) < after + size + 2:
                return False
            value, after = self._data[after : after + size], after + size + 2
        elif kind == b"*" and (size := int(line)) >= 0:
            value = []
            if size:
                self._arrays.append((value, size))
        elif kind in b"$*":
            value = None
        elif kind == b":":
            value = int(line)
        elif kind == b"+":
            value = line
        elif kind == b"-":
            value = BaseParser.parse_error(line.decode(errors="replace"))
        else:
            raise InvalidResponse(f"Protocol Error: {kind!r}")
        self._at = after
        return value


def reader() -> Any:
    """Return a new parser of replies."""
    if HIREDIS_AVAILABLE:
        import hiredis  # type: ignore[import-not-found,unused-ignore]

        return hiredis.Reader(protocolError=InvalidResponse, replyError=BaseParser.parse_error)
    return PlainReader()
