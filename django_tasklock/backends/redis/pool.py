"""Idle connections, opened by redis-py and kept in this module.

redis-py's own pool takes back any connection, also one that a time limit interrupted while it was being opened, for
example before its ``SELECT``, and that counts as complete from then on. Here a connection is complete before it is
handed out, and one that was interrupted is closed.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import redis
from redis.exceptions import RedisError

from django_tasklock.backends.contract.refusals import FULL
from django_tasklock.backends.redis.errors import MISTAKES, NotConnected
from django_tasklock.backends.redis.location import pools

T = TypeVar("T")

MAX_IDLE = 16  # idle connections kept
MAX_IDLE_SECONDS = 60.0  # after which an unused connection is closed
HANDSHAKE_TIMEOUT = 0.1  # seconds to wait for what a server says before the client has sent anything


class Idle(Generic[T]):
    """A stack of idle connections: the last one in is reused first, so that surplus ones grow old and are closed."""

    def __init__(self, close: Callable[[T], None], most: int = MAX_IDLE) -> None:
        self._close = close
        self._max_idle = most
        self.kept: deque[tuple[T, float]] = deque()
        """The idle connections and the time when each was put back (monotonic), the latest at the end."""

    def __len__(self) -> int:
        return len(self.kept)

    def take(self) -> tuple[T, float] | None:
        """Take an idle connection, and the time at which it was put back (monotonic)."""
        try:
            return self.kept.pop()
        except IndexError:  # also when another thread was faster
            return None

    def keep(self, one: T) -> None:
        """Put a connection back."""
        now = time.monotonic()
        kept = self.kept
        kept.append((one, now))
        try:
            if len(kept) > self._max_idle or kept[0][1] < now - MAX_IDLE_SECONDS:
                self._close(kept.popleft()[0])
        except IndexError:  # other threads were faster
            pass

    def clear(self) -> None:
        """Close all idle connections."""
        while (found := self.take()) is not None:
            self._close(found[0])

    def close(self) -> None:
        """Close all idle connections, and from now on each one that is put back."""
        self._max_idle = 0  # first, because another thread may be in keep(), which puts back before it checks this
        self.clear()


def make(pool: redis.ConnectionPool) -> Any:
    """Return a new connection, authenticated, its database selected. No other connection is left open, nor any after an
    interruption. Raises redis-py's errors, and ``OSError``.
    """
    try:
        return _make(pool)
    except MISTAKES as error:
        raise NotConnected(error) from error


def _make(pool: redis.ConnectionPool) -> Any:
    connection = pool.connection_class(**pool.connection_kwargs)
    try:
        try:
            connection.connect()
        finally:
            for sentinels in pools(pool)[1:]:  # rarely needed again, and one of them may have been interrupted
                sentinels.disconnect(inuse_connections=False)
    except BaseException as error:
        throw_away(connection)
        if lost_in_handshake(error) and is_full(connection, error):
            raise redis.ConnectionError(FULL) from error
        raise
    return connection


def throw_away(connection: Any) -> None:
    """Close a connection, ignoring errors."""
    with contextlib.suppress(RedisError, OSError):
        connection.disconnect()


def lost_in_handshake(error: BaseException) -> bool:
    """Tell whether a connection was established, and lost before the handshake was complete."""
    return type(error) is redis.ConnectionError and " connecting to " not in str(error)


def is_full(connection: Any, error: BaseException) -> bool:
    """Tell whether ``error``, raised while connecting, means that the server accepts no more clients.

    The server sends that and closes; if the client has sent anything by then, the message is lost
    with the connection. So connect once more, and only read.
    """
    if FULL in str(error):
        return True
    try:
        if path := getattr(connection, "path", ""):
            probe = socket.socket(socket.AF_UNIX)
            probe.settimeout(HANDSHAKE_TIMEOUT)
            probe.connect(path)
        else:
            probe = socket.create_connection((connection.host, connection.port), HANDSHAKE_TIMEOUT)
        with probe:
            return FULL.encode() in probe.recv(256)
    except OSError:
        return False
