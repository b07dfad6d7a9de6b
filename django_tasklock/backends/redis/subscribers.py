"""Connections of waiting threads, each subscribed to a channel of its own; a few idle ones are kept for a while."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import redis
from redis.exceptions import NoPermissionError, RedisError

from django_tasklock.backends.redis.client import Idle, connect, throw_away
from django_tasklock.backends.redis.errors import unavailable
from django_tasklock.backends.redis.keys import Layout
from django_tasklock.backends.redis.script import bulk

logger = logging.getLogger("django_tasklock")


class Subscriber:
    """A connection subscribed to one channel."""

    def __init__(self, connection: Any, channel: str) -> None:
        self.connection = connection
        self.channel = channel


class Subscribers:
    """The subscribers of this process's threads."""

    def __init__(self, pool: redis.ConnectionPool, layout: Layout) -> None:
        self._pool = pool
        self._layout = layout
        self._idle: Idle[Subscriber] = Idle(self.discard)

    def idle(self) -> Subscriber | None:
        """Return an idle connection that is still open, if there is one; discard its unread messages."""
        while (found := self._idle.take()) is not None:
            subscriber = found[0]
            try:
                while subscriber.connection.can_read(0):
                    subscriber.connection.read_response()  # a message for its former waiter
                return subscriber
            except (RedisError, OSError):
                self.discard(subscriber)
            except BaseException:
                self.discard(subscriber)
                raise
        return None

    def new(self, channel: str = "") -> Subscriber:
        """Return a new connection subscribed to ``channel``, by default to a new one, confirmed by the server.

        A publish from now on reaches it. ``NoPermissionError`` if this user may not subscribe.
        """
        connection = None
        try:
            connection = connect(self._pool)
            subscriber = Subscriber(connection, channel or self._layout.new_channel())
            connection.send_packed_command((b"*2\r\n$9\r\nSUBSCRIBE\r\n" + bulk(subscriber.channel),))
            connection.read_response()
        except BaseException as error:
            if connection is not None:
                throw_away(connection)
            if isinstance(error, RedisError | OSError) and not isinstance(error, NoPermissionError):
                raise unavailable(error) from error
            raise
        return subscriber

    def is_subscribed(self, subscriber: Subscriber) -> bool:
        """Tell whether the connection is to the server that hands over the lock: always, there is one server."""
        return True

    def keep(self, subscriber: Subscriber) -> None:
        """Put a connection back for the next waiter."""
        self._idle.keep(subscriber)

    def discard(self, subscriber: Subscriber) -> None:
        """Close a connection."""
        throw_away(subscriber.connection)

    def close(self) -> None:
        """Close the idle connections, and those in use when they are put back."""
        self._idle.close()


@cache  # once per process
def warn_cannot_subscribe(why: str) -> None:
    """Log that waiters poll, because this user may not subscribe."""
    logger.warning("waiters poll, in no order: Redis does not let its user SUBSCRIBE to their channels (%s)", why)
