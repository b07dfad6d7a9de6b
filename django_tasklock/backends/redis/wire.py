"""Scripts on the wire: packed ahead, sent on a connection that is kept at hand.

redis-py makes and authenticates the connections; what is skipped is the work it
does per command. A connection is taken from the stack for one exchange and put back
only if the exchange was whole, so an exception in the middle (a soft time limit, say)
never leaves somebody else's reply behind.
"""

from __future__ import annotations

import hashlib
import re
import time
from functools import cache, cached_property
from importlib import resources
from typing import Any

import redis
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from django_tasklock.backends.redis.link import Link
from django_tasklock.backends.redis.location import pools
from django_tasklock.backends.redis.pool import FULL, NO_ROOM, Idle, make, throw_away
from django_tasklock.exceptions import BackendUnavailable

RESTED = 0.005
"""Seconds idle after which a connection is looked at before it is used: a server that was
restarted has closed it, and what is not sent into the void need not be sent twice."""

USE = re.compile(r"^ *-- use: (.+)\n", re.MULTILINE)

# What a server says that answers nobody; for some of it redis-py, or an older one, has no error of its own.
NOBODY = ("BUSY ", "MASTERDOWN ", "CLUSTERDOWN ")


def bulk(value: str | bytes | int) -> bytes:
    """Return one argument of a command, as the protocol wants it."""
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
        """Return the same script for another number of keys and arguments."""
        return self if (count, keys) == (self.count, self.keys) else Script(self.body, count, keys)


def load(verb: str, keys: int, arguments: int) -> Script:
    """Return the script of a verb."""
    return Script(_body(verb), keys + arguments, keys)


@cache
def _body(name: str) -> str:
    """Return a file of ``lua/``, with the parts that it shares with others in the place where it says ``-- use:
    these``.

    A script makes its functions anew in each call, up to where it ends: what is not always needed stands last.
    """
    text = (resources.files("django_tasklock.backends") / "lua" / f"{name}.lua").read_text("utf-8")
    return USE.sub(lambda found: "".join(_body(f"_{part}") for part in found[1].split()), text)


def unavailable(error: BaseException, doubt: bool = False) -> BackendUnavailable:
    """Return what a caller is told: the store, and what is known of why. ``doubt``: it may have been executed."""
    down = serves_nobody(error)
    if "WRONGTYPE" in str(error):
        hint = "a key of this lock is something else's: delete it, or choose another TASKLOCK['KEY_PREFIX']"
    elif here(error):
        hint = "this process or machine has no room for another connection; Redis itself may well be up"
    else:
        hint = "see TASKLOCK['LOCATION']"
    what = "Redis could not be asked" if down or here(error) else "Redis refused"
    return BackendUnavailable(f"{what} ({type(error).__name__}: {error}); {hint}", doubt=doubt, down=down)


def serves_nobody(error: BaseException) -> bool:
    """Tell whether the store answers nobody, as far as is known. False: it refused this request, or this client."""
    if isinstance(error, BusyLoadingError | ClusterDownError) or str(error).startswith(NOBODY):
        return True  # MASTERDOWN is one of the second kind
    if isinstance(error, ResponseError | AuthenticationError | AuthorizationError) or FULL in str(error):
        return False
    return not here(error)


def here(error: BaseException | None) -> bool:
    """Tell whether a connection was not made because of this process or machine: too many open files, no port left."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            return True
        error = error.__cause__ or error.__context__
    return False


def final(error: Exception) -> bool:
    """Tell whether asking again cannot help: the server understood and refused."""
    # A replica refuses too, but a new connection may lead to the primary. Redis 6 wraps what it says in a script.
    return isinstance(error, ResponseError) and not isinstance(error, ReadOnlyError) and "READONLY" not in str(error)


def answered(error: Exception) -> bool:
    """Tell whether the server said no: then it has executed nothing."""
    # A connection made through Sentinel turns the first kind into a lost connection.
    return isinstance(error, ResponseError | BusyLoadingError) or isinstance(error.__context__, ReadOnlyError)


class Wire:
    """Runs packed scripts for the threads of this process."""

    def __init__(self, pool: redis.ConnectionPool) -> None:
        self._pool = pool
        self._idle: Idle[Link] = Idle(_close)

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
            doubt = doubt and not answered(error)
            if final(error) or (doubt and not again):
                raise unavailable(error, doubt) from error
        self._idle.clear()  # what is idle is as old as the one that failed
        sent = False
        try:
            link = self.take()
            sent = True
            return self.exchange(link, script, tail), doubt
        except (RedisError, OSError) as error:
            raise unavailable(error, doubt or (sent and not answered(error))) from error

    def exchange(self, link: Link, script: Script, tail: bytes) -> Any:
        """Send one command, and return its reply."""
        try:
            try:
                reply = link.ask(script.by_digest + tail)
            except NoScriptError:
                reply = link.ask(script.by_body + tail)
        except BaseException as error:
            if isinstance(error, Exception) and final(error):
                self._idle.keep(link)
            else:
                _close(link)
            raise
        self._idle.keep(link)
        return reply

    def take(self) -> Link:
        """Return a connected connection that nobody else uses."""
        while (found := self._idle.take()) is not None:
            link, since = found
            if time.monotonic() - since < RESTED or link.quiet():
                return link
            _close(link)
        return Link(make(self._pool))

    def keep(self, link: Link) -> None:
        """Put a connection back that has no reply on its way."""
        self._idle.keep(link)

    def close(self) -> None:
        """Close every connection that nobody uses."""
        self._idle.clear()
        for pool in pools(self._pool):
            pool.disconnect()


def _close(link: Link) -> None:
    throw_away(link.connection)
