"""A connection that redis-py has made, and what is asked on it: its socket and a parser of replies, nothing between.

What redis-py does per command beside that, health checks, metrics, retries, decoding, takes longer than the command.
"""

from __future__ import annotations

import _socket
import encodings.idna  # noqa: F401  # the first look-up of a host would import it, in each forked child again
import os
import select
import socket
from typing import Any

import redis
from redis._parsers import BaseParser
from redis.exceptions import InvalidResponse, RedisError
from redis.utils import HIREDIS_AVAILABLE

CHUNK = 65536  # bytes read at once


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


class Link:
    """One connection. ``connection``: redis-py's, connected, and nobody else's."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.socket: socket.socket = connection._sock
        self.reader = reader()
        # Neither TLS nor gevent, nor Windows, where a socket is no file and cannot be polled.
        self._plain = os.name == "posix" and type(self.socket).recv is _socket.socket.recv
        self._receive = self.socket.recv
        self._feed, self._gets = self.reader.feed, self.reader.gets

    def ask(self, packed: bytes) -> Any:
        """Send one command and return its reply. Raises redis-py's errors, also the one that the reply is."""
        try:
            if self._plain:
                self._write(packed)
            else:
                self.socket.sendall(packed)
            while True:
                data = self._receive(CHUNK)
                if not data:
                    raise redis.ConnectionError("Connection closed by server.")
                self._feed(data)
                reply = self._gets()
                if reply is not False:
                    break
        except (TimeoutError, BlockingIOError) as error:
            raise redis.TimeoutError("Timeout reading from Redis") from error
        except OSError as error:
            raise redis.ConnectionError(f"Error {error.errno} while asking Redis. {error.strerror}.") from error
        if isinstance(reply, RedisError):
            raise reply
        return reply

    def _write(self, packed: bytes) -> None:
        """Write at once what there is room for, which is nearly always all of it: ``sendall`` asks for room first."""
        try:
            sent = os.write(self.socket.fileno(), packed)
        except BlockingIOError:
            sent = 0
        if sent < len(packed):
            self.socket.sendall(packed[sent:])

    def quiet(self) -> bool:
        """Tell whether it is open, with nothing to read: neither a stray reply nor the end."""
        try:
            if not self._plain:
                return not self.connection.can_read(0)
            looking = select.poll()
            looking.register(self.socket, select.POLLIN)
            return not looking.poll(0)
        except (RedisError, OSError, ValueError):  # the last: it was closed here
            return False
