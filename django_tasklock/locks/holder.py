"""Who asks: what is written beside a lock for people to read, and whether that process still runs.

Never a proof of ownership: that is the token.
"""

from __future__ import annotations

import json
import os
import socket
from functools import cache, lru_cache
from pathlib import Path

from django_tasklock import host
from django_tasklock.types import Holder, Record

RENEWED = 250
"""Milliseconds by which the end of a lease must have moved to have been renewed."""
BOOT = os.urandom(6).hex()
"""Tells this process from an earlier one with the same host name and pid; new after a fork."""

_encode = json.JSONEncoder(separators=(",", ":")).encode  # which ``json.dumps`` would make anew for each task's lock


def holder_json(task: host.Task | None = None, row: str = "", *, kept: bool = False, limit: int = 0) -> str:
    """Return this process, and ``task`` or the task that runs in it, as a JSON object: see ``Holder``."""
    if task is None and host.current.runs_task():
        task = host.current.current_task()
    if task is None and not (row or kept or limit):
        return _alone()
    return _json(task, row, kept, limit)


def alive(holder: Holder) -> bool | None:
    """Tell whether the holder's process runs. ``None``: this process cannot know.

    Only what the same kernel says of the same pid namespace counts, and a later process with
    that pid is told by its start time. A process that has ended but was not waited for is dead.
    """
    if holder.boot == BOOT:
        return True
    machine, _, began = holder.proc.rpartition(":")
    if not machine or machine != this_machine():
        return None
    there = _there(holder.pid)
    if not there:
        return there
    state = _state(holder.pid)
    if state is None:
        return False if _there(holder.pid) is False else None  # it may have ended between the two looks
    return state[1] == began and state[0] not in "ZX"


def abandoned(record: Record) -> bool:
    """Tell whether the process of a lock's holder is known to be dead, and nobody else is to find the lock held.

    Not one that is kept for a message on its way, and not one without a lease, as the plain functions take it: it may
    be meant to outlive its process. One of another machine ends with its lease.
    """
    holder, ttl = record.holder, record.ttl
    leased = ttl is not None and record.until - record.now > ttl + RENEWED
    return leased and bool(record.token) and not holder.kept and alive(holder) is False


def _there(pid: int) -> bool | None:
    """Tell whether there is such a process. ``None``: it is no number of one."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OverflowError:
        return None
    except OSError:
        pass  # somebody else's process, which exists
    return True


@cache
def _process() -> dict[str, object]:
    pid = os.getpid()
    known: dict[str, object] = {"host": socket.gethostname(), "pid": pid, "boot": BOOT}
    state = _state(pid)
    if state is not None and this_machine():
        known["proc"] = f"{this_machine()}:{state[1]}"
    return known


@cache
def this_machine() -> str:
    """Return this boot of this kernel, and the pid namespace; empty where there is no such file system."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
        return f"{boot}.{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


def _state(pid: int) -> tuple[str, str] | None:
    """Return state letter and start time of a process, in the words of proc(5)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return fields[0], fields[19]
    except (OSError, IndexError):
        return None


@cache
def _alone() -> str:
    return _encode(_process())


@lru_cache(maxsize=256)
def _of_task(name: str) -> str:
    """Return what all locks of a task's runs in this process begin with."""
    return _encode({**_process(), "task": name})[:-1]


def _json(task: host.Task | None, row: str, kept: bool, limit: int) -> str:
    if task is not None and not (task.retries or row or kept or limit):  # to encode all of it takes five times as long
        return f'{_of_task(task.name)},"task_id":{_encode(task.id)}}}'
    known = dict(_process())
    if task is not None:
        known |= {"task": task.name, "task_id": task.id}
        if task.retries:
            known["retries"] = task.retries
    if row:
        known["row"] = row
    if kept:
        known["kept"] = True
    if limit:
        known["limit"] = limit
    return _encode(known)


def after_fork() -> None:
    """Be a process of its own."""
    global BOOT
    BOOT = os.urandom(6).hex()
    _process.cache_clear()
    _alone.cache_clear()
    _of_task.cache_clear()
