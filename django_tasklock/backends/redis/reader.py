"""Parsers of replies: that of hiredis, or one in Python that is used in the same way."""

from __future__ import annotations

from typing import Any

from redis._parsers import BaseParser
from redis.exceptions import InvalidResponse
from redis.utils import HIREDIS_AVAILABLE


class PlainReader:
    """Parser of replies in Python, used as that of hiredis is: fed what arrives, asked for whole replies."""

    def __init__(self) -> None:
        self._data = b""
        self._at = 0
        self._open: list[tuple[list[Any], int]] = []  # arrays that are not whole yet, and how long they will be

    def feed(self, data: bytes) -> None:
        """Take in what has arrived."""
        self._data = self._data[self._at :] + data
        self._at = 0

    def gets(self) -> Any:
        """Return the next reply, an error as an exception; False if it has not arrived as a whole."""
        while (end := self._data.find(b"\r\n", self._at)) >= 0:
            value = self._one(self._data[self._at : self._at + 1], self._data[self._at + 1 : end], end + 2)
            if value is False:
                return False
            while self._open and value is not self._open[-1][0]:
                items, size = self._open[-1]
                items.append(value)
                if len(items) < size:
                    break
                self._open.pop()
                value = items
            else:
                if not self._open:
                    return value
        return False

    def _one(self, kind: bytes, line: bytes, after: int) -> Any:
        """Read one value, of an array the beginning; False if more has to arrive first."""
        value: Any
        if kind == b"$" and (size := int(line)) >= 0:
            if len(self._data) < after + size + 2:
                return False
            value, after = self._data[after : after + size], after + size + 2
        elif kind == b"*" and (size := int(line)) >= 0:
            value = []
            if size:
                self._open.append((value, size))
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
