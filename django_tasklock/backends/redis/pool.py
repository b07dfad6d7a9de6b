"""Connections, made by redis-py and kept here.

Not in redis-py's pool, which takes back whatever it is given: also a connection that a time limit has struck while it
was made, before its ``SELECT`` say, and that believes from then on that it is whole. Here a connection is whole before
anybody sees it, and what was interrupted is thrown away.
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
from django_tasklock.backends.redis.location import pools

T = TypeVar("T")

MOST = 16  # idle ones that are kept
SPARE = 60.0  # seconds after which one that nobody has needed is closed
GREETING = 0.1  # seconds to listen for what a server says to somebody who asks nothing


class Idle(Generic[T]):
    """What is kept for the next who needs one: the last one first, so that what is spare grows old and is closed."""

    def __init__(self, close: Callable[[T], None], most: int = MOST) -> None:
        self._close = close
        self._most = most
        self.kept: deque[tuple[T, float]] = deque()
        """What there is, the last one last, and when each was put back (monotonic)."""

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
            if len(kept) > self._most or kept[0][1] < now - SPARE:
                self._close(kept.popleft()[0])
        except IndexError:  # other threads were faster
            pass

    def clear(self) -> None:
        """Close all idle connections."""
        while (found := self.take()) is not None:
            self._close(found[0])


def make(pool: redis.ConnectionPool) -> Any:
    """Return a new connection, authenticated, its database selected. Whatever interrupts that leaves nothing behind."""
    connection = pool.connection_class(**pool.connection_kwargs)
    try:
        connection.connect()
    except BaseException as error:
        throw_away(connection)
        for sentinels in pools(pool)[1:]:  # one of these may have been struck in place of it
            sentinels.disconnect(inuse_connections=False)
        if lost_in_greeting(error) and full(connection, error):
            raise redis.ConnectionError(FULL) from error
        raise
    return connection


def throw_away(connection: Any) -> None:
    """Close a connection that is not to be used again."""
    with contextlib.suppress(RedisError, OSError):
        connection.disconnect()


def lost_in_greeting(error: BaseException) -> bool:
    """Tell whether a connection was made, and then lost before it was of use."""
    return type(error) is redis.ConnectionError and " connecting to " not in str(error)


def full(connection: Any, error: BaseException) -> bool:
    """Tell whether ``error``, met while connecting, means that the server takes no more clients.

    It says so and closes, and to whoever has asked something by then the words are lost with the
    connection. So connect once more, and listen.
    """
    if FULL in str(error):
        return True
    try:
        if path := getattr(connection, "path", ""):
            listening = socket.socket(socket.AF_UNIX)
            listening.settimeout(GREETING)
            listening.connect(path)
        else:
            listening = socket.create_connection((connection.host, connection.port), GREETING)
        with listening:
            return FULL.encode() in listening.recv(256)
    except OSError:
        return False
