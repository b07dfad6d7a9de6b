"""A time limit, or a signal, that strikes at an exact moment of a call."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.db import connections
from django.db.utils import ProgrammingError

from tests.support.public import PROJECT

__all__ = ["STRIKES", "SoftTimeLimit", "Struck", "soft_time_limits", "struck_at", "struck_end"]

OURS = f"{PROJECT}{os.sep}django_tasklock{os.sep}"


class Struck(BaseException):
    """As SystemExit out of a handler of SIGTERM is one."""


class SoftTimeLimit(Exception):
    """As Celery's: an exception like any other, out of the handler of a signal."""


def soft_time_limit(*details: object) -> None:
    raise SoftTimeLimit


@contextmanager
def soft_time_limits() -> Iterator[None]:
    """SIGUSR1 raises ``SoftTimeLimit``."""
    before = signal.signal(signal.SIGUSR1, soft_time_limit)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def exits() -> None:
    raise SystemExit


STRIKES = [(exits, SystemExit), (lambda: signal.raise_signal(signal.SIGUSR1), SoftTimeLimit)]
"""What strikes inside of ``struck_end``, and what it raises."""


@contextmanager
def struck_end(how: str, strike: Callable[[], None]) -> Iterator[list[str]]:
    """Strike in place of the next ``how``, ``_commit`` or ``_rollback``, of the default connection; says what happened.

    Django asks for autocommit after it, inside of the transaction that was not ended, and PostgreSQL refuses that. That
    others do is acted: they end it.
    """
    connection: Any = connections["default"]
    set_autocommit = connection._set_autocommit
    seen: list[str] = []

    def end() -> None:
        if seen:
            getattr(type(connection), how)(connection)
        else:
            seen.append(how)
            strike()

    def refuse(autocommit: bool) -> None:
        try:
            if autocommit and seen == [how] and connection.vendor != "postgresql":
                raise ProgrammingError("can't change 'autocommit' now: connection in transaction status INTRANS")
            set_autocommit(autocommit)
        except ProgrammingError:
            seen.append("refused")
            raise

    setattr(connection, how, end)
    connection._set_autocommit = refuse
    try:
        with soft_time_limits():
            yield seen
    finally:
        delattr(connection, how)
        del connection._set_autocommit
        connection.close()


def stack(frame: Any) -> str:
    """The lines of ours that are being executed."""
    lines = []
    while frame is not None:
        if OURS in frame.f_code.co_filename:
            lines.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return " < ".join(lines)


@contextmanager
def struck_at(number: int) -> Iterator[list[str]]:
    """Raise ``Struck`` the so-manieth time that a signal handler of this thread could run in our code; says where.

    That is when a function of ours begins, and after each call of one in C.
    """
    struck: list[str] = []
    count = 0

    def look(frame: Any, event: str, what: Any) -> None:
        nonlocal count
        if event not in ("call", "c_return") or not frame.f_code.co_filename.startswith(OURS):
            return
        count += 1
        if count < number or struck:
            return
        where = stack(frame)
        if "__del__" in where:
            return  # an exception that is raised in there is lost
        struck.append(where)
        raise Struck

    sys.setprofile(look)
    try:
        yield struck
    except Struck:
        pass
    finally:
        sys.setprofile(None)
