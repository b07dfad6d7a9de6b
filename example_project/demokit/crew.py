"""The processes of the demo: each in a group of its own, so that it can be killed with all its children."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from videos.processes import tied

__all__ = ["Crew", "wait_until"]


def wait_until(condition: Callable[[], object], seconds: float, pause: float = 0.1) -> bool:
    """Wait until ``condition`` is true; return ``False`` after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
    return True


class Crew:
    """Start, kill and stop processes by name; each has a log file."""

    def __init__(self, folder: Path, logs: Path) -> None:
        self.folder = folder
        self.logs = logs
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.groups: set[int] = set()

    def log(self, name: str) -> Path:
        """Return the path of the log of the process ``name``."""
        return self.logs / f"{name}.log"

    def start(self, name: str, *command: str) -> None:
        """Start a process that the terminal's Ctrl-C does not reach. The command begins with an absolute path."""
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                tied([*command]),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.running[name] = process
        self.groups.add(process.pid)

    def kill(self, name: str) -> None:
        """Kill the process and all its descendants with SIGKILL."""
        process = self.running.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def dead(self) -> list[str]:
        """Return the processes that ended without having been stopped."""
        return [name for name, process in self.running.items() if process.poll() is not None]

    def stop(self, seconds: float = 10) -> None:
        """Terminate all processes, and kill after ``seconds`` those that still run."""
        for process in self.running.values():
            process.terminate()
        deadline = time.monotonic() + seconds
        for process in self.running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        for name in list(self.running):
            self.kill(name)

    def left(self) -> list[int]:
        """Return the ids of all processes that were started here, or are their descendants, and still run."""
        return sorted(pid for pid, group in _processes() if group in self.groups)


def _processes() -> list[tuple[int, int]]:
    """Return (pid, process group) of every process that is not a zombie."""
    if Path("/proc/self/stat").exists():
        rows = []
        for entry in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                state, _, group = entry.read_text(errors="replace").rpartition(")")[2].split()[:3]
                rows.append((entry.parent.name, group, state))
    else:
        said = subprocess.run(["ps", "-A", "-o", "pid=,pgid=,stat="], capture_output=True, text=True, check=True).stdout
        rows = [tuple(line.split()[:3]) for line in said.splitlines()]  # type: ignore[misc]
    return [(int(pid), int(group)) for pid, group, state in rows if not state.startswith("Z")]
