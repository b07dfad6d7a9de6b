"""Commands on connections made by redis-py, sent directly on the socket and read with a reply parser.

What redis-py does per command (health checks, metrics, retries, decoding) takes longer than the command itself. A
connection is taken from a stack for one exchange and put back only if the exchange was complete, so an exception in
the middle (a soft time limit, for example) never leaves an unread reply for the next user.
"""

from __future__ import annotations

import _socket
import encodings.idna  # noqa: F401  # the first host lookup would import it, again in each forked child
import os
import select
import socket
import struct
import sys
from typing import Any

import redis
from redis.exceptions import RedisError

from django_tasklock.backends.redis.reader import reader

RESTED = 0.005
"""Seconds idle after which a connection is checked before it is used: a server that was restarted has closed it, and
a command that is not sent on a dead connection need not be sent twice."""
FIRST_WAIT = 0.005  # seconds within which nearly every reply arrives; the kernel's timeout saves a second system call
FIRST_READ = 4096  # bytes of the first read: nearly every reply is shorter
READ_SIZE = 65536  # bytes of each further read


class Link:
    """One connection. ``connection``: redis-py's, connected, and used by nothing else."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.socket: socket.socket = connection._sock
        # False with TLS, with gevent, and on Windows, where a socket is no file and cannot be polled.
        self._plain = os.name == "posix" and type(self.socket).recv is _socket.socket.recv
        self._timeout = self.socket.gettimeout()
        if self._plain and self._timeout is not None:
            _set_socket_timeouts(self.socket, self._timeout)
        self._send, self._receive = self.socket.sendall, self.socket.recv
        parser = reader()
        self._feed, self._gets = parser.feed, parser.gets

    def ask(self, packed: bytes) -> Any:
        """Send one command and return its reply. Raises redis-py's errors, also for an error reply."""
        try:
            self._send(packed)
            try:
                data = self._receive(FIRST_READ)
            except BlockingIOError:
                data = self._wait(FIRST_READ)
            if data[:1] == b":" and data[-2:] == b"\r\n":  # a complete integer: the reply of nearly every script
                return int(data[1:-2])
            reply = self._read(data)
        except OSError as error:
            raise _connection_error(error) from error
        if isinstance(reply, RedisError):
            try:
                raise reply
            finally:
                del reply  # else the error and this frame would refer to each other, and keep the caller's lock alive
        return reply

    def _read(self, data: bytes) -> Any:
        """Return the reply that begins with ``data``, reading more as needed."""
        while True:
            if not data:
                raise redis.ConnectionError("Connection closed by server.")
            self._feed(data)
            reply = self._gets()
            if reply is not False:
                return reply
            data = self._wait(READ_SIZE)

    def send(self, packed: bytes) -> None:
        """Send one or more commands; ``arrived`` or ``read`` return the replies. Raises redis-py's errors."""
        try:
            self._send(packed)
        except OSError as error:
            raise _connection_error(error) from error

    def arrived(self) -> list[Any]:
        """Return the complete replies, errors as exception objects. To be called when the socket is readable."""
        replies: list[Any] = []
        while True:
            try:
                data = self._receive(READ_SIZE)
            except (TimeoutError, BlockingIOError):  # TLS: only a part of a record has arrived
                return replies
            except OSError as error:
                raise _connection_error(error) from error
            if not data:
                raise redis.ConnectionError("Connection closed by server.")
            self._feed(data)
            while (reply := self._gets()) is not False:
                replies.append(reply)
            if self._plain or not getattr(self.socket, "pending", int)():  # poll() cannot see what TLS has buffered
                return replies

    def read(self) -> Any:
        """Return the next reply, an error reply as an exception object. Raises redis-py's errors."""
        try:
            reply = self._gets()
            return self._read(self._wait(READ_SIZE)) if reply is False else reply
        except OSError as error:
            raise _connection_error(error) from error

    def _wait(self, size: int) -> bytes:
        """Wait for more data. A poll has one deadline for all its interruptions by signals; the timeout of the socket
        would start again after each.
        """
        if self._plain and self._timeout is not None:
            poller = select.poll()
            poller.register(self.socket, select.POLLIN)
            if not poller.poll(self._timeout * 1000):
                raise TimeoutError
        data: bytes = self._receive(size)
        return data

    def is_idle(self) -> bool:
        """Tell whether the connection is open and has nothing left to read."""
        try:
            if not self._plain:
                return not self.connection.can_read(0)
            poller = select.poll()
            poller.register(self.socket, select.POLLIN)
            return not poller.poll(0)
        except (RedisError, OSError, ValueError):  # ValueError: it was closed on this side
            return False


def _connection_error(error: OSError) -> RedisError:
    if isinstance(error, TimeoutError | BlockingIOError):
        return redis.TimeoutError("Timeout reading from Redis")
    return redis.ConnectionError(f"Error {error.errno} while asking Redis. {error.strerror}.")


def _set_socket_timeouts(connected: socket.socket, seconds: float) -> None:
    """Set the timeouts in the kernel: with a timeout of its own, Python makes an extra poll() before each send or read.

    Only where the layout of a ``struct timeval`` is known.
    """
    if sys.platform != "linux" or struct.calcsize("l") != 8:
        return
    try:
        for option, most in ((socket.SO_RCVTIMEO, min(FIRST_WAIT, seconds)), (socket.SO_SNDTIMEO, seconds)):
            connected.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(most), int(most % 1 * 1_000_000)))
    except OSError:
        return
    connected.setblocking(True)
