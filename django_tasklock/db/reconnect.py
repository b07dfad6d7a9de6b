"""Connections that the server, a pooler or a firewall has dropped, and what may be sent again then.

A body of two hours outlives its connection: ``wait_timeout``, ``idle_session_timeout``, a restart, a failover,
PgBouncer's ``server_idle_timeout``. Nobody notices before the next statement fails. Whether that statement was
executed is not known then, so it is sent again only if that does no harm.
"""

from __future__ import annotations

import logging
import random
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, TypeVar

from django.db import Error, InterfaceError, InternalError, OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Value
from django.db.models.functions import Now

from django_tasklock.db.transactions import joined

logger = logging.getLogger("django_tasklock")
T = TypeVar("T")

PATIENCE = 15.0
"""Seconds for which a write waits for a database that cannot be reached: a restart, or a failover."""
CONTENDED = 2.0
"""Seconds from its first try for which a statement that lost a race is sent again."""

_GONE = ("08", "57P01", "57P02", "57P03", "57P05")  # sqlstates: the connection, shut down, starting, idle too long
_GONE_MYSQL = frozenset({1053, 1152, 1158, 1159, 1160, 1161, 1927, 2002, 2003, 2006, 2013, 2055, 4031})
_READ_ONLY = "25006"
_READ_ONLY_MYSQL = frozenset({1290, 1792, 1836})
_RACES = frozenset({"40001", "40P01", "55P03"})  # serialization failure, deadlock, lock not available
_RACES_MYSQL = frozenset({1020, 1205, 1213})  # record changed, lock wait timeout, deadlock
_RACES_SQLITE = frozenset({5, 6})  # busy, locked
_OUT_OF_STEP = 2014  # MySQL: a time limit struck in the middle of a query, and its answer was never read
# What a server, or this machine, says when it makes no connection for this client and serves others: clients know no
# code of PostgreSQL's then. Of one that says it in another language it is not known.
_NO_ROOM = re.compile(
    "too many|slots are reserved|no more connections|max_user_connections|authentication failed|access denied",
    re.IGNORECASE,
)
_AT_ONCE = 100  # dead connections out of a pool that are passed over without a pause


class _Verdict(NamedTuple):
    """What an error says of the statement."""

    gone: bool
    """The connection is of no use any more."""
    doubt: bool
    """The statement may have been executed."""
    race: bool = False
    """It was rolled back for another one's sake."""


def repeatable(values: Mapping[str, Any]) -> bool:
    """Return whether writing ``values`` twice leaves what writing them once does: they are plain, or ``Now()``."""
    return all(_plain(value) for value in values.values())


def _plain(value: Any) -> bool:
    """Return whether it is known to read nothing: conditions name columns by words, and a function may do anything."""
    if not hasattr(value, "resolve_expression"):
        return True
    return type(value) in (Value, Now)


def replace_dropped(connection: BaseDatabaseWrapper) -> None:
    """Replace a connection that was dropped, also those that wait in a pool and were dropped as well.

    Never because of its age: the body may be reading from it. Nothing is connected that was not.
    """
    for _ in range(_AT_ONCE):
        if connection.connection is None or connection.is_usable():
            return
        _close(connection)
        if getattr(connection, "pool", None):
            connection.ensure_connection()


def close_dropped(connection: BaseDatabaseWrapper) -> None:
    """Close a connection that was dropped, unless a transaction is open on it: the next statement makes a new one."""
    if connection.connection is not None and not connection.in_atomic_block and not connection.is_usable():
        _close(connection)


def resilient(
    connection: BaseDatabaseWrapper,
    step: Callable[[bool], T],
    who: str,
    *,
    again: bool = True,
    refused: bool = True,
    patience: float = 0.0,
    within: bool | None = None,
) -> T:
    """Return what ``step(tried)`` does; ``tried``: an earlier try may have been executed. Sent again, on a new
    connection if this one is of no use any more,

    * once if the database dropped us, and for ``patience`` seconds while it cannot be reached,
    * for ``CONTENDED`` seconds if it lost a race: a deadlock, a serialization failure, a locked SQLite file,
    * with ``refused`` once if a live connection refused it for any other reason that may be the moment's, or if none
      could be made.

    ``again=False``: never if it may have been executed; such a step is sent on a connection that was looked at before.
    In a transaction of the caller's nothing is sent again; ``within``: whether this is one, where that was asked.
    Raises the database's error; in its place what struck in the end of the step's own transaction, which it hides.
    """
    if joined(connection) if within is None else within:
        return step(False)
    if not again:
        replace_dropped(connection)
    began = time.monotonic()
    tries, tried = 0, False
    outside = sys.exc_info()[1]
    while True:
        connected = connection.connection is not None
        try:
            return step(tried)
        except errors_of(connection) as error:
            _show_strike(connection, error, outside)
            if not _passing(connection, error):
                raise
            tries += 1
            verdict = _judge(connection, error, connected)
            if verdict.gone:
                _close(connection)
            if verdict.doubt and not again:
                error.add_note("it may have been executed all the same, and was not sent again for that")
                raise
            tried = tried or not verdict.race
            waited = time.monotonic() - began
            if verdict.race and waited < CONTENDED:
                time.sleep(random.uniform(0.001, 0.05))
                continue
            if tries > 1 and (not verdict.gone or waited >= patience):
                raise
            if not refused and not (verdict.gone and (connected or getattr(connection, "pool", None))):
                raise
            logger.warning("%s: the database dropped us, trying once more: %s", who, error)
            if verdict.gone:
                _wait(connection, tries, began + patience)


@contextmanager
def ending(connection: BaseDatabaseWrapper, block: AbstractContextManager[object]) -> Iterator[None]:
    """End ``block``, a transaction, with this one. What strikes in that end is raised in place of the database's error
    that hides it; of what the body raises nothing is known better.
    """
    outside = sys.exc_info()[1]
    try:
        with block:
            try:
                yield
            except BaseException as error:
                outside = error
                raise
    except errors_of(connection) as error:
        if error is not outside:
            _show_strike(connection, error, outside)
        raise


def errors_of(connection: Any) -> tuple[type[Exception], ...]:
    """Return what may be raised by a statement: while Django deals with an error, also one of the driver's own."""
    return Error, connection.Database.Error


def serves_nobody(connection: BaseDatabaseWrapper, error: Exception) -> bool:
    """Return whether the database answers nobody, as far as is known. False: it refused this statement, or this client.

    To be asked when ``resilient`` raised ``error``: then a connection that is of no use any more is closed.
    """
    if connection.connection is not None or _is_read_only(connection, error) or _NO_ROOM.search(str(error)):
        return False
    return not getattr(connection, "pool", None) or _pool_cannot_connect(connection, error)


def makes_no_connection(connection: BaseDatabaseWrapper) -> bool:
    """Return whether the database makes no other connection, as far as is known; False also if it refuses us one.

    To be asked where it is not known what a statement has failed of.
    """
    other = connection.copy()
    try:
        other.ensure_connection()
    except errors_of(other) as error:
        return serves_nobody(other, error)
    finally:
        other.close()
    return False


def _pool_cannot_connect(connection: Any, error: Exception) -> bool:
    """Return whether the pool gave no connection because the server makes none, and not because all are in use."""
    cause = type(error.__cause__)
    if not cause.__module__.startswith("psycopg_pool"):
        return True
    if cause.__name__ != "PoolTimeout":  # closed, or too many of this process wait for it
        return False
    # It says the same of both, its figures count a connection that it tries to make as one in use, and it tries that
    # in vain more and more rarely: only the server itself can tell.
    try:
        connection.Database.connect(**{**connection.get_connection_params(), "connect_timeout": 1}).close()
    except errors_of(connection) as refusal:
        return not _NO_ROOM.search(str(refusal))
    return False


def _show_strike(connection: BaseDatabaseWrapper, error: BaseException, outside: BaseException | None) -> None:
    """Raise what a signal has struck with, if ``error`` hides it, off the connection: that is in a transaction of which
    Django knows nothing any more.
    """
    strike = _hidden(error, outside)
    if strike is not None:
        _close(connection)
        raise strike from strike.__cause__


def _hidden(error: BaseException, outside: BaseException | None) -> BaseException | None:
    """Return what a signal has struck with, a time limit say, before ``error``, whose context it is; or ``None``.

    Django switches autocommit on after it, in the transaction that was neither committed nor rolled back, and the
    database refuses that. ``outside``: what was being dealt with before, which is its caller's business.
    """
    found = error.__context__
    while found is not None and found is not outside:
        if not isinstance(found, Exception) or _from_a_signal(found):
            return found
        found = found.__context__
    return None


def _from_a_signal(error: Exception) -> bool:
    """Return whether the handler of a signal has raised it: time limits of Celery are exceptions like any other."""
    handlers = {getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()} - {None}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False


def _is_read_only(connection: BaseDatabaseWrapper, error: Exception) -> bool:
    return _state(error) == _READ_ONLY or _mysql_code(connection, error) in _READ_ONLY_MYSQL


def _passing(connection: BaseDatabaseWrapper, error: Exception) -> bool:
    """Return whether it can be the connection's fault, or the moment's."""
    kinds = (OperationalError, InterfaceError, InternalError)
    return isinstance(error, kinds) or _mysql_code(connection, error) == _OUT_OF_STEP


def _judge(connection: BaseDatabaseWrapper, error: Exception, connected: bool) -> _Verdict:
    if connection.connection is None:  # it could not even be made, unless a transaction has closed it behind itself
        return _Verdict(True, connected)
    state, code = _state(error), _mysql_code(connection, error)
    if _is_read_only(connection, error):
        return _Verdict(True, False)  # a primary once, demoted by a failover: its name leads elsewhere by now
    if code == _OUT_OF_STEP:
        return _Verdict(True, False)
    # A pooler may tell of a server it has lost while we are still connected to the pooler.
    gone = state.startswith(_GONE) or code in _GONE_MYSQL or not connection.is_usable()
    return _Verdict(gone, gone, not gone and _lost_a_race(error, state))  # what a live connection refuses was not done


def _lost_a_race(error: Exception, state: str) -> bool:
    cause = error.__cause__ or error
    if state:
        return state in _RACES
    code = getattr(cause, "sqlite_errorcode", None)
    if code is not None:
        return code & 0xFF in _RACES_SQLITE
    return bool(cause.args) and cause.args[0] in _RACES_MYSQL


def _state(error: Exception) -> str:
    cause = error.__cause__
    return str(getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None) or "")


def _mysql_code(connection: BaseDatabaseWrapper, error: Exception) -> Any:
    """Return MySQL's number for it. While an error is dealt with Django may let one of the driver's own through."""
    source = error.__cause__ or error
    return source.args[0] if connection.vendor == "mysql" and source.args else None


def _close(connection: BaseDatabaseWrapper) -> None:
    try:
        if connection.connection is not None and getattr(connection, "pool", None):
            connection.connection.close()  # or the pool gives it to the next
        connection.close()
    except errors_of(connection) as error:  # it is gone all the same
        logger.debug("database %r: while closing a dropped connection: %r", connection.alias, error)


def _wait(connection: BaseDatabaseWrapper, tries: int, ends: float) -> None:
    """Wait until the database can be reached, ``ends`` at the latest: the next try says what is wrong then."""
    pause = 0.05
    while True:
        try:
            connection.ensure_connection()
            replace_dropped(connection)
        except (OperationalError, InterfaceError, InternalError):
            _close(connection)
        else:
            if tries > 1:  # it answers, and refuses
                time.sleep(max(0.0, min(pause * tries, 1.0, ends - time.monotonic())))
            return
        if time.monotonic() + pause >= ends:
            return
        time.sleep(pause * random.uniform(0.7, 1.3))
        pause = min(pause * 2, 1.0)
