"""The holder as it is stored beside a lock, and whether its process still runs.

It is for people to read, and no proof of ownership: that is the token.
"""

from __future__ import annotations

import json
import os
import socket
from functools import cache
from pathlib import Path

from django_tasklock import host
from django_tasklock.process import check_process
from django_tasklock.types import Holder

_encode = json.JSONEncoder(separators=(",", ":")).encode  # ``json.dumps`` makes a new one for each call


def holder_json(task: host.Task | None = None, row: str = "", *, limit: int = 0, kind: str = "") -> str:
    """Return this process and its task, by default the running one, as a JSON object: see ``Holder``."""
    check_process()
    task = task or running_task()
    known = dict(_process())
    if task is not None:
        known |= {"task": task.name, "task_id": task.id, "retries": task.retries}
    known |= {"row": row, "limit": limit, "kind": kind}
    return _encode({key: value for key, value in known.items() if value})


def running_task() -> host.Task | None:
    """Return the task whose body runs here; ``None``: none does."""
    return host.current.current_task() if host.current.runs_task() else None


def message_json(task: str, task_id: str) -> str:
    """Return a message on its way as the holder: no process, whose end would end it."""
    return _encode({"task": task, "task_id": task_id})


def boot() -> str:
    """Return what distinguishes this process from an earlier one with the same host name and pid. New after a fork."""
    check_process()
    return _boot()


def alive(holder: Holder) -> bool | None:
    """Tell whether the holder's process runs. Return ``None`` if this process cannot know.

    Only the kernel and pid namespace of the holder can say so. A later process with the same pid is recognized by its
    start time. A zombie process is dead.
    """
    if holder.boot == boot():
        return True
    machine, _, began = holder.proc.rpartition(":")
    if not machine or machine != this_machine():
        return None
    exists = _exists(holder.pid)
    if not exists:
        return exists
    state = _state(holder.pid)
    if state is None:
        return False if _exists(holder.pid) is False else None  # it may have ended between the two calls
    return state[1] == began and state[0] not in "ZX"


def runs(pid: int) -> bool:
    """Tell whether a process with this pid runs here. A zombie process is dead."""
    if not _exists(pid):
        return False
    state = _state(pid)
    return state is None or state[0] not in "ZX"


def _exists(pid: int) -> bool | None:
    """Tell whether there is such a process. Return ``None`` if ``pid`` is no process id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OverflowError:
        return None
    except OSError:
        pass  # the process of another user, which exists
    return True


@cache
def _boot() -> str:
    return os.urandom(6).hex()


@cache
def _process() -> dict[str, object]:
    pid = os.getpid()
    known: dict[str, object] = {"host": socket.gethostname(), "pid": pid, "boot": _boot()}
    state = _state(pid)
    if state is not None and this_machine():
        known["proc"] = f"{this_machine()}:{state[1]}"
    return known


@cache
def this_machine() -> str:
    """Return an id of this boot of the kernel and this pid namespace; empty where there is no ``/proc``."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
        return f"{boot}.{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


def _state(pid: int) -> tuple[str, str] | None:
    """Return the state letter and the start time of a process, as in proc(5)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return fields[0], fields[19]
    except (OSError, IndexError):
        return None


def after_fork() -> None:
    """Forget what describes the parent process."""
    _boot.cache_clear()
    _process.cache_clear()
