"""Scripts on the wire: packed ahead, sent on a connection that is kept at hand.

redis-py makes, authenticates and mends the connections; what is skipped is the work it
does per command. A connection is taken from the stack for one exchange and put back
only if the exchange was whole, so an exception in the middle (a soft time limit, say)
never leaves somebody else's reply behind.
"""

from __future__ import annotations

import hashlib
from collections import deque
from functools import cached_property
from importlib import resources
from typing import Any

import redis
from redis.exceptions import NoScriptError, ReadOnlyError, RedisError, ResponseError

from django_tasklock.exceptions import BackendUnavailable

__all__ = ["Script", "Wire", "bulk", "load", "unavailable"]


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


def load(verb: str, keys: int, arguments: int) -> Script:
    """The script of a verb, with the part that they share before it."""
    folder = resources.files("django_tasklock.backends") / "lua"
    body = (folder / "_common.lua").read_text("utf-8") + (folder / f"{verb}.lua").read_text("utf-8")
    return Script(body, keys + arguments, keys)


def unavailable(error: BaseException) -> BackendUnavailable:
    """What a caller is told: the store, and what is known of why."""
    return BackendUnavailable(f"Redis could not be asked ({type(error).__name__}: {error}); see TASKLOCK['LOCATION']")


def final(error: Exception) -> bool:
    """Whether asking again cannot help: the server understood and refused."""
    return isinstance(error, ResponseError) and not isinstance(error, ReadOnlyError)


class Wire:
    """Runs packed scripts for the threads of this process."""

    def __init__(self, pool: redis.ConnectionPool) -> None:
        self._pool = pool
        self._idle: deque[Any] = deque()

    def call(self, script: Script, tail: bytes) -> tuple[Any, bool]:
        """Run ``script``. The reply, and whether it had to be sent twice (the first may have been executed).

        Raises ``BackendUnavailable`` after two attempts, each bounded by ``location.TIMEOUT``.
        """
        try:
            return self.exchange(script, tail), False
        except (RedisError, OSError) as error:
            if final(error):
                raise unavailable(error) from error
        self.drop()  # what is idle is as old as the one that failed
        try:
            return self.exchange(script, tail), True
        except (RedisError, OSError) as error:
            raise unavailable(error) from error

    def exchange(self, script: Script, tail: bytes) -> Any:
        """One command and its reply."""
        connection = self.take()
        try:
            connection.send_packed_command((script.by_digest + tail,))
            try:
                reply = connection.read_response()
            except NoScriptError:
                connection.send_packed_command((script.by_body + tail,))
                reply = connection.read_response()
        except BaseException as error:
            if isinstance(error, Exception) and final(error):
                self._idle.append(connection)
            else:
                self.discard(connection)
            raise
        self._idle.append(connection)
        return reply

    def take(self) -> Any:
        """A connected connection that nobody else uses."""
        try:
            return self._idle.pop()
        except IndexError:
            return self._pool.get_connection()

    def discard(self, connection: Any) -> None:
        """Close a connection that may have a reply on its way."""
        connection.disconnect()
        self._pool.release(connection)

    def drop(self) -> None:
        """Close what is idle."""
        while self._idle:
            self.discard(self._idle.pop())

    def close(self) -> None:
        """Close every connection."""
        self.drop()
        self._pool.disconnect()
