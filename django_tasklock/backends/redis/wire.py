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
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

import redis
from redis.exceptions import NoScriptError, RedisError

from django_tasklock.backends.redis.acknowledged import Acknowledged
from django_tasklock.backends.redis.errors import is_final, unavailable, was_answered
from django_tasklock.backends.redis.pool import Idle, make, throw_away
from django_tasklock.backends.redis.reader import reader
from django_tasklock.backends.redis.script import Script, packed

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

    def ask_both(self, packed: bytes) -> tuple[Any, Any]:
        """Send two commands and return their replies. Raises if the first is an error; a second error is returned."""
        try:
            self._send(packed)
            first = self._read(self._wait(FIRST_READ))
            second = self._gets()
            if second is False:
                second = self._read(self._wait(FIRST_READ))
        except OSError as error:
            raise _connection_error(error) from error
        if isinstance(first, RedisError):
            try:
                raise first
            finally:
                del first
        return first, second

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


class Wire:
    """Runs encoded scripts for the threads of this process."""

    def __init__(self, pool: redis.ConnectionPool, acknowledged: Acknowledged | None = None) -> None:
        self._pool = pool
        self._idle: Idle[Link] = Idle(_close)
        self._kept = self._idle.kept
        self._closed = False
        self.acknowledged = acknowledged
        """The replicas that must acknowledge a grant; ``None``: none must."""
        self.grant: Callable[[Script, bytes], tuple[Any, bool]] = self.call if acknowledged is None else self._grant
        """Run a script that grants: ``call``, plus the acknowledgement by replicas where that is required."""

    def call(self, script: Script, tail: bytes, *, again: bool = True) -> tuple[Any, bool]:
        """Run ``script``; return its reply, and whether an earlier attempt may have been executed too.

        ``again=False`` is for a script that must not be executed twice: it is sent again only
        if the first attempt cannot have been executed. Raises ``BackendUnavailable`` after two
        attempts, each bounded by ``location.TIMEOUT``.
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
        self.clear()  # the idle connections are as old as the one that failed
        sent = False
        try:
            link = self.take()
            sent = True
            return self.exchange(link, script, tail), doubt
        except (RedisError, OSError) as error:
            raise unavailable(error, doubt or (sent and not was_answered(error))) from error

    def run(
        self, script: Script, keys: Sequence[str], args: Sequence[str | bytes | int] = (), *, again: bool = True
    ) -> tuple[Any, bool]:
        """Do what ``call`` does, with keys and arguments that are not encoded yet."""
        return self.call(*packed(script, keys, args), again=again)

    def _grant(self, script: Script, tail: bytes) -> tuple[Any, bool]:
        assert self.acknowledged is not None
        replies, doubt = self.call(script.and_then, tail + self.acknowledged.command)
        return self.acknowledged.judge(replies), doubt

    def exchange(self, link: Link, script: Script, tail: bytes) -> Any:
        """Send one command and return its reply; if another command follows it, send both and return both replies."""
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
        """Return an open connection for exclusive use."""
        kept = self._kept
        while kept:
            try:
                link, since = kept.pop()
            except IndexError:  # another thread was faster
                break
            if monotonic() - since < RESTED or link.is_idle():
                return link
            _close(link)
        return Link(make(self._pool))

    def keep(self, link: Link) -> None:
        """Put back a connection that has no reply pending. It is closed if ``close`` was called."""
        kept = self._kept
        if kept:
            self._idle.keep(link)
        else:  # the only idle one: no limit to check, none too old
            kept.append((link, monotonic()))
            if self._closed:  # checked after that, because another thread may be in close()
                self.clear()

    def clear(self) -> None:
        """Close every idle connection."""
        self._idle.clear()

    def close(self) -> None:
        """Close every idle connection, and those in use when they are put back. Each later request opens one."""
        self._closed = True
        self._idle.close()


def _close(link: Link) -> None:
    throw_away(link.connection)
