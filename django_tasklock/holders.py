"""Who asks: what is written beside a lock for people to read. Never a proof of anything."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from functools import cache

__all__ = ["BOOT", "describe_task", "me"]

BOOT = os.urandom(6).hex()
"""Tells this process from an earlier one with the same host name and pid; new after a fork."""

Task = tuple[str, str]


def _no_task() -> Task | None:
    return None


_current_task: Callable[[], Task | None] = _no_task


def describe_task(provider: Callable[[], Task | None]) -> None:
    """Let ``provider`` say which task runs here: its name and id, or ``None``."""
    global _current_task
    _current_task = provider


def me() -> str:
    """This process, and the task that runs in it, as a JSON object."""
    return _json(_current_task())


@cache
def _process() -> dict[str, object]:
    return {"host": socket.gethostname(), "pid": os.getpid(), "boot": BOOT}


@cache
def _alone() -> str:
    return json.dumps(_process(), separators=(",", ":"))


def _json(task: Task | None) -> str:
    if task is None:
        return _alone()
    return json.dumps({**_process(), "task": task[0], "task_id": task[1]}, separators=(",", ":"))


def _after_fork() -> None:
    global BOOT
    BOOT = os.urandom(6).hex()
    _process.cache_clear()
    _alone.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
