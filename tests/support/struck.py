"""A time limit, or a signal, that strikes at an exact moment of a call."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.public import PROJECT

__all__ = ["Struck", "struck_at"]

OURS = f"{PROJECT}{os.sep}django_tasklock{os.sep}"


class Struck(BaseException):
    """As SystemExit out of a handler of SIGTERM is one."""


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
        code = frame.f_code
        if event not in ("call", "c_return") or OURS not in code.co_filename or "__del__" in stack(frame):
            return  # what is raised in there is lost, whoever raises it
        count += 1
        if count == number:
            struck.append(stack(frame))
            raise Struck

    sys.setprofile(look)
    try:
        yield struck
    except Struck:
        pass
    finally:
        sys.setprofile(None)
