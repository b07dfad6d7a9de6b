"""Scripts on the wire: packed ahead, sent on a connection that is kept at hand.

redis-py makes, authenticates and mends the connections; what is skipped is the work it
does per command. A connection is taken from the stack for one exchange and put back
only if the exchange was whole, so an exception in the middle (a soft time limit, say)
never leaves somebody else's reply behind.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
import struct
import time
from collections import deque
from functools import cached_property
from importlib import resources
from typing import Any

import redis
from redis.exceptions import BusyLoadingError, NoScriptError, ReadOnlyError, RedisError, ResponseError

from django_tasklock.backends.redis.location import connect, pools
from django_tasklock.exceptions import BackendUnavailable

__all__ = ["RESTED", "Script", "Wire", "answered", "bulk", "final", "load", "unavailable"]

RESTED = 0.005
"""Seconds idle after which a connection is looked at before it is used: a server that was
restarted has closed it, and what is not sent into the void need not be sent twice."""


def bulk(value: str | bytes | int) -> bytes:
    """One argument of a command, as the protocol wants it."""
    data = value if isinstance(value, bytes) else str(value).encode()
    return b"$%d\r\n%b\r\n" % (len(data), data)


class Script:
    """A script and the beginnings of the commands that run it.

    ``count`` is the number of keys and arguments together, ``keys`` of the keys alone.
    """

    def __init__(self, body: str, count: int, keys: int) -> None:
        self.body = body
        self.count = count
        self.keys = keys
        self.sha = hashlib.sha1(body.encode(), usedforsecurity=False).hexdigest()

    @cached_property
    def by_digest(self) -> bytes:
        """What comes before the packed keys and arguments."""
        return b"*%d\r\n$7\r\nEVALSHA\r\n%b%b" % (self.count + 3, bulk(self.sha), bulk(self.keys))

    @cached_property
    def by_body(self) -> bytes:
        """The same for a server that does not know the script (any more): it does afterwards."""
        return b"*%d\r\n$4\r\nEVAL\r\n%b%b" % (self.count + 3, bulk(self.body), bulk(self.keys))

    def sized(self, count: int, keys: int) -> Script:
        """The same script for another number of keys and arguments."""
        return self if (count, keys) == (self.count, self.keys) else Script(self.body, count, keys)


def load(verb: str, keys: int, arguments: int, *shared: str) -> Script:
    """The script of a verb, with the parts that it shares with others before it."""
    folder = resources.files("django_tasklock.backends") / "lua"
    body = "".join((folder / f"{part}.lua").read_text("utf-8") for part in ("_common", *shared, verb))
    return Script(body, keys + arguments, keys)


def unavailable(error: BaseException, doubt: bool = False) -> BackendUnavailable:
    """What a caller is told: the store, and what is known of why. ``doubt``: it may have been executed."""
    if "WRONGTYPE" in str(error):
        hint = "a key of this lock is something else's: delete it, or choose another TASKLOCK['KEY_PREFIX']"
    else:
        hint = "see TASKLOCK['LOCATION']"
    what = "Redis refused" if isinstance(error, ResponseError) else "Redis could not be asked"
    return BackendUnavailable(f"{what} ({type(error).__name__}: {error}); {hint}", doubt=doubt)


def final(error: Exception) -> bool:
    """Whether asking again cannot help: the server understood and refused."""
    # A replica refuses too, but a new connection may lead to the primary. Redis 6 wraps what it says in a script.
    return isinstance(error, ResponseError) and not isinstance(error, ReadOnlyError) and "READONLY" not in str(error)


def answered(error: Exception) -> bool:
    """Whether the server said no: then it has executed nothing."""
    # A connection made through Sentinel turns the first kind into a lost connection.
    return isinstance(error, ResponseError | BusyLoadingError) or isinstance(error.__context__, ReadOnlyError)


class Wire:
    """Runs packed scripts for the threads of this process."""

    def __init__(self, pool: redis.ConnectionPool) -> None:
        self._pool = pool
        self._idle: deque[tuple[Any, float]] = deque()

    def call(self, script: Script, tail: bytes, *, again: bool = True) -> tuple[Any, bool]:
        """Run ``script``. The reply, and whether an earlier sending of it may have been executed.

        ``again=False`` is for what must not be executed twice: it is sent again only if the
        first sending cannot have been. Raises ``BackendUnavailable`` after two attempts,
        each bounded by ``location.TIMEOUT``.
        """
        doubt = False
        try:
            connection = self.take()
            doubt = True
            return self.exchange(connection, script, tail), False
        except (RedisError, OSError) as error:
            doubt = doubt and not answered(error)
            if final(error) or (doubt and not again):
                raise unavailable(error, doubt) from error
        self.drop()  # what is idle is as old as the one that failed
        sent = False
        try:
            connection = self.take()
            sent = True
            return self.exchange(connection, script, tail), doubt
        except (RedisError, OSError) as error:
            raise unavailable(error, doubt or (sent and not answered(error))) from error

    def exchange(self, connection: Any, script: Script, tail: bytes) -> Any:
        """One command and its reply."""
        try:
            connection.send_packed_command((script.by_digest + tail,))
            try:
                reply = connection.read_response()
            except NoScriptError:
                connection.send_packed_command((script.by_body + tail,))
                reply = connection.read_response()
        except BaseException as error:
            if isinstance(error, Exception) and final(error):
                self.keep(connection)
            else:
                self.discard(connection)
            raise
        self.keep(connection)
        return reply

    def take(self) -> Any:
        """A connected connection that nobody else uses."""
        try:
            while True:
                connection, since = self._idle.pop()
                if time.monotonic() - since < RESTED or quiet(connection):
                    return connection
                self.discard(connection)
        except IndexError:
            return kernel_timed(connect(self._pool))

    def keep(self, connection: Any) -> None:
        """Put a connection back that has no reply on its way."""
        self._idle.append((connection, time.monotonic()))

    def discard(self, connection: Any) -> None:
        """Close a connection that may have a reply on its way."""
        connection.disconnect()
        self._pool.release(connection)

    def drop(self) -> None:
        """Close what is idle."""
        with contextlib.suppress(IndexError):
            while True:
                self.discard(self._idle.pop()[0])

    def close(self) -> None:
        """Close every connection."""
        self.drop()
        for pool in pools(self._pool):
            pool.disconnect()


def quiet(connection: Any) -> bool:
    """Whether an idle connection is open, with nothing to read: neither a stray reply nor the end."""
    sock = getattr(connection, "_sock", None)
    try:
        if sock is None or sock.gettimeout() is not None:
            return not connection.can_read(0)
        sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)  # can_read() would give the time back to Python
    except BlockingIOError:
        return True
    except (RedisError, OSError):
        return False
    return False


def kernel_timed(connection: Any) -> Any:
    """Let the kernel keep the time: Python's own time-outs cost a ``poll`` before every send and receive.

    Only for sockets as Python makes them: not TLS, not the ones that gevent puts in their place.
    """
    sock = getattr(connection, "_sock", None)
    if sock is None or type(sock).__module__ != "socket" or not (seconds := sock.gettimeout()):
        return connection
    value = struct.pack("ll", int(seconds), int(seconds % 1 * 1_000_000))
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)
    except (AttributeError, OSError):
        return connection  # no such options here, or of another shape
    sock.settimeout(None)
    return connection
