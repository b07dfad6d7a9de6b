"""Retries of statements on connections that the server, a pooler or a firewall has dropped.

A body of two hours outlives its connection: ``wait_timeout``, ``idle_session_timeout``, a restart, a failover,
PgBouncer's ``server_idle_timeout``. That shows when the next statement fails. Whether that statement was executed is
unknown then, so it is sent again only if that does no harm.
"""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from django.db import Error, InterfaceError, InternalError, OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Value
from django.db.models.functions import Now

from django_tasklock.db.transactions import in_callers_transaction

logger = logging.getLogger("django_tasklock")
T = TypeVar("T")

PATIENCE = 15.0
"""Seconds, from its first refusal, for which a write is retried that the database refuses for now."""
LEAST_ATTEMPTS = 3
"""The attempts of such a write, however long each takes."""
CONTENDED = 2.0
"""Seconds, from its first attempt, for which any other statement is retried that lost to another transaction."""

_DROPPED = ("08", "57P01", "57P02", "57P03", "57P05")  # sqlstates: connection, shutdown, starting up, idle too long
_DROPPED_MYSQL = frozenset({1053, 1152, 1158, 1159, 1160, 1161, 1927, 2002, 2003, 2006, 2013, 2055, 4031})
_READ_ONLY = "25006"
_READ_ONLY_MYSQL = frozenset({1290, 1792, 1836})
_LOCKED = "another transaction holds a lock on the row"
_OVERTAKEN = "another transaction came first"
_CLOSED = "the database closed the connection"
_LOSSES = {"55P03": _LOCKED, "40001": _OVERTAKEN, "40P01": _OVERTAKEN}  # lock_timeout, serialization, deadlock
_LOSSES_MYSQL = {1205: _LOCKED, 1020: _OVERTAKEN, 1213: _OVERTAKEN}  # lock wait timeout, record changed, deadlock
_BUSY_SQLITE = frozenset({5, 6})  # busy, locked
_OUT_OF_STEP = 2014  # MySQL: a time limit interrupted a query, and its result was never read
# How PostgreSQL's clients, which have no code for it, say that nobody answers as they connect, or that the server is
# starting up. Whatever else they say concerns this client: a password, a name, TLS. With several hosts they say both.
_SILENT = re.compile(
    "refused|timed out|timeout expired|reset by peer|broken pipe|closed the connection|no route to|unreachable"
    "|is down|cannot connect|starting up|shutting down|recovery mode|not yet accepting|connection is (lost|closed)"
    "|connection (already|has been) closed",
    re.IGNORECASE,
)
_REFUSED = re.compile(
    "too many|slots are reserved|no more connections|authentication|pg_hba|does not exist|permission denied"
    "|no such file|host name|resolve host|support SSL|certificate|SSL error",
    re.IGNORECASE,
)
_NOWHERE = re.compile(r"\((2|13)\)")
"""How MySQL's clients say that the path of a socket does not exist, or is forbidden."""
_AT_ONCE = 100  # dropped connections that are taken from a pool and replaced without a pause


class _Diagnosis(NamedTuple):
    """The cause of an error, as far as it matters for a retry. ``what``: it, for people."""

    what: str
    dropped: bool
    """The connection cannot be used any more."""
    doubt: bool
    """The statement may have been executed."""
    lost: bool = False
    """The statement was not executed because of another transaction."""


def repeatable(values: Mapping[str, Any]) -> bool:
    """Return whether writing ``values`` twice has the same result as once: they are plain values, or ``Now()``."""
    return all(_is_plain(value) for value in values.values())


def _is_plain(value: Any) -> bool:
    """Return whether a value certainly reads no columns: a condition or a function may."""
    if not hasattr(value, "resolve_expression"):
        return True
    return type(value) in (Value, Now)


def replace_dropped(connection: BaseDatabaseWrapper) -> None:
    """Replace a connection that was dropped, and skip others of its pool that were dropped too.

    A connection is not replaced because of its age: the body may be reading from it. A closed one is not opened.
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


def run_with_retries(
    connection: BaseDatabaseWrapper,
    step: Callable[[bool], T],
    who: str,
    *,
    again: bool = True,
    refused: bool = True,
    patience: float = 0.0,
    within: bool | None = None,
) -> T:
    """Return ``step(may_have_run)``; ``may_have_run``: an earlier attempt may have been executed. Retry it, on a new
    connection if this one cannot be used any more,

    * for ``CONTENDED`` seconds if it lost to another transaction: a deadlock, a serialization failure, a row lock that
      was not given up in time, a locked SQLite file,
    * once if the connection was dropped, or if the database cannot be reached or is read-only,
    * with ``refused`` once if a live connection refused it for another reason that may be temporary, or if no
      connection could be opened.

    With ``patience`` the first two are retried for so many seconds after the first refusal, and ``LEAST_ATTEMPTS`` are
    made in any case.

    ``again=False``: no retry if it may have been executed; the connection is checked before the first attempt.
    In the caller's transaction there is no retry; ``within``: whether there is one, if the caller knows.
    Raises the database's error. It may hide a time limit that struck while the step's own transaction ended; with
    ``patience`` the step is tried again then.
    """
    if in_callers_transaction(connection) if within is None else within:
        return step(False)
    if not again:
        replace_dropped(connection)
    began = time.monotonic()
    attempts, may_have_run, ends, told = 0, False, 0.0, False
    while True:
        connected = connection.connection is not None
        try:
            return step(may_have_run)
        except errors_of(connection) as error:
            lost = end_lost_transaction(connection)
            if not (_is_transient(connection, error) or (lost and patience)):
                raise
            attempts += 1
            diagnosis = _diagnose(connection, error, connected)
            if diagnosis.dropped:
                _close(connection)
            if diagnosis.doubt and not again:
                error.add_note("it may have been executed all the same, and was not sent again for that")
                raise
            may_have_run = may_have_run or not diagnosis.lost
            now = time.monotonic()
            ends = ends or now + patience
            patient = patience > 0 and (now < ends or attempts < LEAST_ATTEMPTS)
            if diagnosis.lost:
                contended = now - began < CONTENDED
                if not (contended or patient):
                    raise
                if not (contended or told):
                    logger.warning("%s: %s, trying again: %s", who, diagnosis.what, error)
                    told = True
                time.sleep(random.uniform(0.001, 0.05) if contended else random.uniform(0.1, 0.5))
                continue
            if attempts > 1 and not (diagnosis.dropped and patient):
                raise
            from_pool = getattr(connection, "pool", None) and not _had_none(error)
            if not refused and not (diagnosis.dropped and (connected or from_pool)):
                raise
            logger.warning("%s: %s, trying again: %s", who, diagnosis.what, error)
            if diagnosis.dropped:
                _wait(connection, attempts, ends)
        except BaseException:
            end_lost_transaction(connection)
            raise


def errors_of(connection: Any) -> tuple[type[Exception], ...]:
    """Return the exceptions that a statement may raise: while Django handles an error, also the driver's own."""
    driver = getattr(connection, "Database", None)  # a project without a database has none
    return (Error,) if driver is None else (Error, driver.Error)


def is_row_locked(error: Exception) -> bool:
    """Return whether a statement was given up because another transaction holds a lock: on the row, or on the file."""
    return _lost_to(error) == _LOCKED


def serves_nobody(connection: BaseDatabaseWrapper, error: Exception) -> bool:
    """Return whether the database serves no client, as far as known. False: it refused this statement, or this client,
    which may be mistaken about a name, a password or TLS; it is a file; or a pool had no connection in time, whatever
    the cause.

    To be called after ``run_with_retries`` raised ``error``: then a connection that cannot be used any more is closed.
    """
    if connection.connection is not None or _had_none(error):
        return False
    if state := _state(error):
        return state.startswith(_DROPPED)
    if isinstance(code := _mysql_code(connection, error), int):
        return code in _DROPPED_MYSQL and not _NOWHERE.search(str(error))
    return bool(_SILENT.search(str(error))) and not _REFUSED.search(str(error))


def _had_none(error: Exception) -> bool:
    """Return whether a pool had no connection in time."""
    return type(error.__cause__).__module__.startswith("psycopg_pool")


def _is_read_only(connection: BaseDatabaseWrapper, error: Exception) -> bool:
    return _state(error) == _READ_ONLY or _mysql_code(connection, error) in _READ_ONLY_MYSQL


def _is_transient(connection: BaseDatabaseWrapper, error: Exception) -> bool:
    """Return whether the cause may be the connection, or temporary."""
    kinds = (OperationalError, InterfaceError, InternalError)
    return isinstance(error, kinds) or _mysql_code(connection, error) == _OUT_OF_STEP


def _diagnose(connection: BaseDatabaseWrapper, error: Exception, connected: bool) -> _Diagnosis:
    if connection.connection is None:  # it could not be opened, or a transaction has closed it at its end
        return _Diagnosis(_CLOSED if connected else "the database cannot be reached", True, connected)
    state, code = _state(error), _mysql_code(connection, error)
    if _is_read_only(connection, error):  # a former primary after a failover: its name has another address by now
        return _Diagnosis("the database is read-only", True, False)
    if code == _OUT_OF_STEP:
        return _Diagnosis("the connection is out of step", True, False)
    # A pooler may report a server that it has lost, while we are still connected to the pooler.
    if state.startswith(_DROPPED) or code in _DROPPED_MYSQL or not connection.is_usable():
        return _Diagnosis(_CLOSED, True, True)
    # A statement that a live connection refused was not executed.
    lost_to = _lost_to(error)
    return _Diagnosis(lost_to or "the database refused it", False, False, bool(lost_to))


def _lost_to(error: Exception) -> str:
    """Return what another transaction did to a statement that lost to it; empty if that is not the cause."""
    if state := _state(error):
        return _LOSSES.get(state, "")
    cause = error.__cause__ or error
    code = getattr(cause, "sqlite_errorcode", None)
    if code is not None:
        return _LOCKED if code & 0xFF in _BUSY_SQLITE else ""
    return _LOSSES_MYSQL.get(cause.args[0], "") if cause.args else ""


def _state(error: Exception) -> str:
    cause = error.__cause__
    return str(getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None) or "")


def _mysql_code(connection: BaseDatabaseWrapper, error: Exception) -> Any:
    """Return MySQL's error number. While Django handles an error, it may let the driver's own exception through."""
    source = error.__cause__ or error
    return source.args[0] if connection.vendor == "mysql" and source.args else None


def end_lost_transaction(connection: BaseDatabaseWrapper) -> bool:
    """End a transaction that Django has lost track of, and return whether there was one.

    An exception of a signal handler, such as a time limit, has struck as it began or ended.
    To be called where the caller has none.
    """
    if connection.connection is None or connection.in_atomic_block:
        return False
    lost = not connection.autocommit
    if connection.vendor == "sqlite" and connection.connection.in_transaction:
        connection.connection.rollback()  # after a close(), a cursor in a traceback would keep the file locked
        lost = True
    if not connection.autocommit:
        _close(connection)
    return lost


def _close(connection: BaseDatabaseWrapper) -> None:
    try:
        if connection.connection is not None and getattr(connection, "pool", None):
            connection.connection.close()  # otherwise the pool would hand it out again
        connection.close()
    except errors_of(connection) as error:  # closed all the same
        logger.debug("database %r: while closing a dropped connection: %r", connection.alias, error)


def _wait(connection: BaseDatabaseWrapper, attempts: int, ends: float) -> None:
    """Wait until the database can be reached, at most until ``ends``: then the next attempt raises the error."""
    pause = 0.05
    while True:
        try:
            connection.ensure_connection()
            replace_dropped(connection)
        except (OperationalError, InterfaceError, InternalError):
            _close(connection)
        else:
            if attempts > 1:  # it is reachable, and has refused the statement again
                time.sleep(max(0.0, min(pause * attempts, 10.0, ends - time.monotonic())))
            return
        if time.monotonic() + pause >= ends:
            return
        time.sleep(pause * random.uniform(0.7, 1.3))
        pause = min(pause * 2, 1.0)
