"""Other processes as the operating system sees them; zombies are dead."""

from __future__ import annotations

import contextlib
import ctypes
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

__all__ = ["Process", "fork_in_c", "processes"]


class Process(NamedTuple):
    """One that lives."""

    pid: int
    parent: int
    group: int
    state: str
    """``T``: stopped."""


def processes() -> list[Process]:
    """All of this machine."""
    rows = []
    if Path("/proc/self/stat").exists():
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):  # it has ended, or is no process
                stat = (entry / "stat").read_text(errors="replace") if entry.name.isdecimal() else ""
                if stat:
                    state, parent, group = stat.rpartition(")")[2].split()[:3]
                    rows.append((entry.name, parent, group, state))
    else:
        command = ["ps", "-A", "-o", "pid=,ppid=,pgid=,stat="]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        rows = [tuple(line.split()[:4]) for line in said.splitlines()]  # type: ignore[misc]
    return [
        Process(int(pid), int(parent), int(group), state[0]) for pid, parent, group, state in rows if state[0] != "Z"
    ]


def fork_in_c() -> int:
    """Fork as uWSGI does: Python's fork hooks do not run. The pid of the child; 0 in the child.

    A thread that asked for the interpreter at that moment would be waited for in the child, where there is none.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # seconds until a thread that waits for the interpreter asks for it
    time.sleep(10 * before)  # one that waits already has asked by then
    try:
        return int(ctypes.PyDLL(None).fork())
    finally:
        sys.setswitchinterval(before)
