"""Connections that redis-py has made, and what is asked on them: a socket and a parser of replies, nothing between.

What redis-py does per command, health checks, metrics, retries, decoding, takes longer than the command. A connection
is taken from the stack for one exchange and put back only if the exchange was whole, so an exception in the middle (a
soft time limit, say) never leaves somebody else's reply behind.
"""

from __future__ import annotations

import _socket
import encodings.idna  # noqa: F401  # the first look-up of a host would import it, in each forked child again
import os
import select
import socket
import struct
import sys
from collections.abc import Callable
from time import monotonic
from typing import Any

import redis
from redis.exceptions import NoScriptError, RedisError

from django_tasklock.backends.redis.acknowledged import Acknowledged
from django_tasklock.backends.redis.errors import is_final, unavailable, was_answered
from django_tasklock.backends.redis.location import pools
from django_tasklock.backends.redis.pool import Idle, make, throw_away
from django_tasklock.backends.redis.reader import reader
from django_tasklock.backends.redis.script import Script

RESTED = 0.005
"""Seconds idle after which a connection is looked at before it is used: a server that was
restarted has closed it, and what is not sent into the void need not be sent twice."""
SOON = 0.005  # seconds in which nearly every reply has come: the system counts them, which takes one call, not two
SHORT = 4096  # bytes read at first: nearly every reply is shorter
CHUNK = 65536  # bytes read at once after that


class Link:
    """One connection. ``connection``: redis-py's, connected, and nobody else's."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.socket: socket.socket = connection._sock
        # Neither TLS nor gevent, nor Windows, where a socket is no file and cannot be polled.
        self._plain = os.name == "posix" and type(self.socket).recv is _socket.socket.recv
        self._timeout = self.socket.gettimeout()
        if self._plain and self._timeout is not None:
            _let_the_system_count(self.socket, self._timeout)
        self._send, self._receive = self.socket.sendall, self.socket.recv
        parser = reader()
        self._feed, self._gets = parser.feed, parser.gets

    def ask(self, packed: bytes) -> Any:
        """Send one command and return its reply. Raises redis-py's errors, also the one that the reply is."""
        try:
            self._send(packed)
            try:
                data = self._receive(SHORT)
            except BlockingIOError:
                data = self._wait(SHORT)
            if data[:1] == b":" and data[-2:] == b"\r\n":  # a number, and whole: what nearly every script says
                return int(data[1:-2])
            reply = self._read(data)
        except OSError as error:
            raise _lost(error) from error
        if isinstance(reply, RedisError):
            raise reply
        return reply

    def ask_both(self, packed: bytes) -> tuple[Any, Any]:
        """Send two commands and return their replies. Raises the error that the first is; that of the second is one."""
        try:
            self._send(packed)
            first = self._read(self._wait(SHORT))
            second = self._gets()
            if second is False:
                second = self._read(self._wait(SHORT))
        except OSError as error:
            raise _lost(error) from error
        if isinstance(first, RedisError):
            raise first
        return first, second

    def _read(self, data: bytes) -> Any:
        """Return the reply that ``data`` begins, and what else comes of it."""
        while True:
            if not data:
                raise redis.ConnectionError("Connection closed by server.")
            self._feed(data)
            reply = self._gets()
            if reply is not False:
                return reply
            data = self._wait(CHUNK)

    def send(self, packed: bytes) -> None:
        """Send one command or several, whose replies ``arrived`` or ``read`` will have. Raises redis-py's errors."""
        try:
            self._send(packed)
        except OSError as error:
            raise _lost(error) from error

    def arrived(self) -> list[Any]:
        """Return the replies that are whole, an error as an exception. To be called when there is something to read."""
        replies: list[Any] = []
        while True:
            try:
                data = self._receive(CHUNK)
            except (TimeoutError, BlockingIOError):  # of TLS a part of a record
                return replies
            except OSError as error:
                raise _lost(error) from error
            if not data:
                raise redis.ConnectionError("Connection closed by server.")
            self._feed(data)
            while (reply := self._gets()) is not False:
                replies.append(reply)
            if self._plain or not getattr(self.socket, "pending", int)():  # what TLS has read ahead wakes nobody
                return replies

    def read(self) -> Any:
        """Return the next reply to what was sent, also an error that it is. Raises redis-py's errors."""
        try:
            reply = self._gets()
            return self._read(self._wait(CHUNK)) if reply is False else reply
        except OSError as error:
            raise _lost(error) from error

    def _wait(self, size: int) -> bytes:
        """Wait for more, however often a signal interrupts that: the system would begin to count anew."""
        if self._plain and self._timeout is not None:
            looking = select.poll()
            looking.register(self.socket, select.POLLIN)
            if not looking.poll(self._timeout * 1000):
                raise TimeoutError
        data: bytes = self._receive(size)
        return data

    def quiet(self) -> bool:
        """Tell whether the connection is open and nothing is left to read on it."""
        try:
            if not self._plain:
                return not self.connection.can_read(0)
            looking = select.poll()
            looking.register(self.socket, select.POLLIN)
            return not looking.poll(0)
        except (RedisError, OSError, ValueError):  # the last: it was closed here
            return False


def _lost(error: OSError) -> RedisError:
    if isinstance(error, TimeoutError | BlockingIOError):
        return redis.TimeoutError("Timeout reading from Redis")
    return redis.ConnectionError(f"Error {error.errno} while asking Redis. {error.strerror}.")


def _let_the_system_count(connected: socket.socket, seconds: float) -> None:
    """Let the system end what takes too long: Python would ask it for room, or data, before each use.

    Only where the layout of a ``struct timeval`` is known.
    """
    if sys.platform != "linux" or struct.calcsize("l") != 8:
        return
    try:
        for option, most in ((socket.SO_RCVTIMEO, min(SOON, seconds)), (socket.SO_SNDTIMEO, seconds)):
            connected.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(most), int(most % 1 * 1_000_000)))
    except OSError:
        return
    connected.setblocking(True)


class Wire:
    """Runs packed scripts for the threads of this process."""

    def __init__(self, pool: redis.ConnectionPool, acknowledged: Acknowledged | None = None) -> None:
        self._pool = pool
        self._idle: Idle[Link] = Idle(_close)
        self._kept = self._idle.kept
        self.acknowledged = acknowledged
        """What a grant must be acknowledged by, if it must."""
        self.grant: Callable[[Script, bytes], tuple[Any, bool]] = self.call if acknowledged is None else self._grant
        """Run a script that grants: ``call``, and its grant acknowledged where it must be."""

    def call(self, script: Script, tail: bytes, *, again: bool = True) -> tuple[Any, bool]:
        """Run ``script``. The reply, and whether an earlier sending of it may have been executed.

        ``again=False`` is for what must not be executed twice: it is sent again only if the
        first sending cannot have been. Raises ``BackendUnavailable`` after two attempts,
        each bounded by ``location.TIMEOUT``.
        """
        doubt = False
        try:
            link = self.take()
            doubt = True
            return self.exchange(link, script, tail), False
        except (RedisError, OSError) as error:
            doubt = doubt and not was_answered(error)
            if is_final(error) or (doubt and not again):
                raise unavailable(error, doubt) from error
        self._idle.clear()  # what is idle is as old as the one that failed
        sent = False
        try:
            link = self.take()
            sent = True
            return self.exchange(link, script, tail), doubt
        except (RedisError, OSError) as error:
            raise unavailable(error, doubt or (sent and not was_answered(error))) from error

    def _grant(self, script: Script, tail: bytes) -> tuple[Any, bool]:
        assert self.acknowledged is not None
        replies, doubt = self.call(script.and_then, tail + self.acknowledged.command)
        return self.acknowledged.judge(replies), doubt

    def exchange(self, link: Link, script: Script, tail: bytes) -> Any:
        """Send one command, and return its reply; where another follows, both of both."""
        ask = link.ask_both if script.followed else link.ask
        try:
            try:
                reply = ask(script.by_digest + tail)
            except NoScriptError:
                reply = ask(script.by_body + tail)
        except BaseException as error:
            if isinstance(error, Exception) and is_final(error):
                self.keep(link)
            else:
                _close(link)
            raise
        self.keep(link)
        return reply

    def take(self) -> Link:
        """Return a connected connection that nobody else uses."""
        kept = self._kept
        while kept:
            try:
                link, since = kept.pop()
            except IndexError:  # another thread was faster
                break
            if monotonic() - since < RESTED or link.quiet():
                return link
            _close(link)
        return Link(make(self._pool))

    def keep(self, link: Link) -> None:
        """Put a connection back that has no reply on its way."""
        if self._kept:
            self._idle.keep(link)
        else:  # the only one: neither too many, nor any that nobody needs
            self._kept.append((link, monotonic()))

    def close(self) -> None:
        """Close every connection that nobody uses."""
        self._idle.clear()
        for pool in pools(self._pool):
            pool.disconnect()


def _close(link: Link) -> None:
    throw_away(link.connection)
