"""Scripts on connections of redis-py's that are used directly: its own client and pool cost more than a command.

A connection is taken from a stack for one exchange and put back only if the exchange was complete, so an exception in
the middle (a soft time limit, for example) never leaves an unread reply for the next user. redis-py's pool takes back
any connection, also one that was interrupted while it was being opened, for example before its ``SELECT``.
"""

from __future__ import annotations

import contextlib
import encodings.idna  # noqa: F401  # the first host lookup would import it, again in each forked child
import sys
from collections import deque
from collections.abc import Sequence
from time import monotonic
from typing import Any

import redis
from redis.exceptions import NoScriptError, RedisError
from redis.sentinel import MasterNotFoundError

from django_tasklock.backends.contract.refusals import MISTAKES
from django_tasklock.backends.redis.errors import (
    NotConnected,
    concerns_us_alone,
    is_final,
    serves_nobody,
    unavailable,
    was_answered,
)
from django_tasklock.backends.redis.handshake import explain, speaks_plainly
from django_tasklock.backends.redis.location import TIMEOUT, pools
from django_tasklock.backends.redis.script import Script

MAX_IDLE = 16  # idle connections kept
MAX_IDLE_SECONDS = 60.0  # after which an unused connection is closed
RESTED = 0.005
"""Seconds idle after which a connection is checked before it is used: a server that was restarted has closed it, and
a command that is not sent on a dead connection need not be sent twice."""


class Client:
    """Runs scripts at one server, for the threads of this process. ``pool``: how to connect to it."""

    def __init__(self, pool: redis.ConnectionPool) -> None:
        self._pool = pool
        pool.max_connections = sys.maxsize  # it counts those that it has ever made, also those that are closed since
        self._idle: deque[tuple[Any, float]] = deque()
        """The idle connections and the time when each was put back (monotonic), the latest at the end: that is reused
        first, so that surplus ones grow old and are closed."""
        self._most = MAX_IDLE

    def run(
        self, script: Script, keys: Sequence[str], args: Sequence[str | bytes | int] = (), *, again: bool = True
    ) -> tuple[Any, bool]:
        """Run ``script``; return its reply, and whether an earlier attempt may have been executed too.

        ``again=False`` is for a script that must not be executed twice: it is sent again only
        if the first attempt cannot have been executed. Raises ``BackendUnavailable`` after two
        attempts, each bounded by ``location.TIMEOUT``.
        """
        doubt = False
        try:
            connection = self.take()
            doubt = True
            return self.exchange(connection, script, keys, args), False
        except (RedisError, OSError) as error:
            doubt = doubt and not was_answered(error)
            if is_final(error) or isinstance(error, NotConnected) or (doubt and not again):
                raise unavailable(error, doubt) from error
        self.clear()  # the idle connections are as old as the one that failed
        sent = False
        try:
            connection = self.take()
            sent = True
            return self.exchange(connection, script, keys, args), doubt
        except (RedisError, OSError) as error:
            raise unavailable(error, doubt or (sent and not was_answered(error))) from error

    def exchange(
        self, connection: Any, script: Script, keys: Sequence[str], args: Sequence[str | bytes | int] = ()
    ) -> Any:
        """Run ``script`` once on a connection from ``take``, and put that back, or close it if it failed.

        Raises redis-py's errors, and ``OSError``.
        """
        try:
            try:
                reply = ask(connection, "EVALSHA", script.sha, len(keys), *keys, *args)
            except NoScriptError:
                reply = ask(connection, "EVAL", script.body, len(keys), *keys, *args)
        except BaseException as error:
            if isinstance(error, Exception) and is_final(error):
                self.keep(connection)
            else:
                throw_away(connection)
            raise
        self.keep(connection)
        return reply

    def take(self) -> Any:
        """Return an open connection of redis-py's for exclusive use. Raises redis-py's errors, and ``OSError``."""
        while self._idle:
            try:
                connection, since = self._idle.pop()
            except IndexError:  # another thread was faster
                break
            if monotonic() - since < RESTED or _is_quiet(connection):
                return connection
            throw_away(connection)
        return self.connect()

    def connect(self) -> Any:
        """Return a new connection of redis-py's, for a subscription. Raises redis-py's errors, and ``OSError``."""
        return connect(self._pool)

    def keep(self, connection: Any) -> None:
        """Put back a connection that has no reply pending. It is closed if ``close`` was called."""
        now = monotonic()
        self._idle.append((connection, now))
        try:
            if len(self._idle) > self._most or self._idle[0][1] < now - MAX_IDLE_SECONDS:
                throw_away(self._idle.popleft()[0])
        except IndexError:  # other threads were faster
            pass

    def clear(self) -> None:
        """Close every idle connection."""
        while self._idle:
            with contextlib.suppress(IndexError):  # another thread was faster
                throw_away(self._idle.pop()[0])

    def close(self) -> None:
        """Close every idle connection, and those in use when they are put back. Each later request opens one."""
        self._most = 0  # first, because another thread may be in keep(), which puts back before it checks this
        self.clear()


def ask(connection: Any, *words: str | bytes | int) -> Any:
    """Send one command and return its reply. Raises redis-py's errors, also for an error reply."""
    connection.send_packed_command([packed(words)], check_health=False)
    return connection.read_response(disable_decoding=True)


def packed(words: Sequence[str | bytes | int]) -> bytes:
    """Return a command as it is sent. Without hiredis, redis-py's ``pack_command`` takes three times as long."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        text = word if isinstance(word, bytes) else str(word).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(text), text))
    return b"".join(parts)


def _is_quiet(connection: Any) -> bool:
    """Tell whether a connection is open and has nothing left to read."""
    try:
        return not connection.can_read(0)
    except (RedisError, OSError, ValueError):  # ValueError: it was closed on this side
        return False


def connect(pool: redis.ConnectionPool) -> Any:
    """Return a new connection, authenticated, its database selected. No other connection is left open, nor any after an
    interruption. Raises redis-py's errors, and ``OSError``; ``NotConnected`` if other clients may well be connected.
    """
    handled, began = sys.exception(), monotonic()
    try:
        return _connect(pool)
    except NotConnected:
        raise
    except MasterNotFoundError as error:
        if reason := _no_primary(pool, began + TIMEOUT):
            raise reason from error
        raise
    except MISTAKES as error:
        raise NotConnected(error) from error
    except (RedisError, OSError) as error:
        if concerns_us_alone(error, handled):
            raise NotConnected(error) from error
        raise


def _connect(pool: redis.ConnectionPool) -> Any:
    # Not by make_connection(), which counts the connections ever made, and refuses the hundredth and first.
    connection: Any = pool.connection_class(**pool.connection_kwargs)
    try:
        try:
            connection.connect()
        finally:
            for sentinels in pools(pool)[1:]:  # rarely needed again, and one of them may have been interrupted
                sentinels.disconnect(inuse_connections=False)
    except BaseException as error:
        throw_away(connection)
        if isinstance(error, RedisError) and (reason := explain(connection, error)):
            raise reason from error
        raise
    return connection


def _no_primary(pool: Any, ends: float) -> NotConnected | None:
    """Return why Sentinels name no primary, if it is a mistake of this client's: they know no such service, or none
    lets us ask. They are asked until ``ends`` (monotonic): redis-py has done so, and keeps no errors.
    """
    service, known, refusal = str(pool.service_name), None, None
    for sentinel in pools(pool)[1:]:
        host, port = sentinel.connection_kwargs["host"], sentinel.connection_kwargs["port"]
        try:
            if monotonic() > ends:  # each that speaks no TLS has spent it
                if issubclass(sentinel.connection_class, redis.SSLConnection) and speaks_plainly((host, port)):
                    raise NotConnected("a Sentinel does not speak TLS: add sentinel_ssl=false to the URL")
                continue
            connection = connect(sentinel)
            try:
                known = bool(known or ask(connection, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", service))
            finally:
                throw_away(connection)
        except (RedisError, OSError) as error:
            if not serves_nobody(error):
                refusal = refusal or (error if isinstance(error, NotConnected) else NotConnected(error))
    if known is None:
        return refusal
    return None if known else NotConnected(f"the Sentinels know no service {service!r}")


def throw_away(connection: Any) -> None:
    """Close a connection, ignoring errors."""
    with contextlib.suppress(RedisError, OSError):
        connection.disconnect()
