"""What the demo says, what it waits for, and the processes that it starts."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from videos.processes import tied

__all__ = ["Crew", "say", "wait"]

BEGUN = time.monotonic()


def say(text: str) -> None:
    """Print one line with the seconds since the start."""
    print(f"[{time.monotonic() - BEGUN:5.1f}] {text}", flush=True)


def wait(condition: Callable[[], object], seconds: float, why: str) -> bool:
    """Say what is waited for, and wait until ``condition`` is true; return ``False`` after ``seconds``."""
    say(why)
    now = told = time.monotonic()
    deadline = now + seconds
    while not condition():
        now = time.monotonic()
        if now > deadline:
            return False
        if now > told + 5:
            say("... still waiting")
            told = now
        time.sleep(0.2)
    return True


class Crew:
    """The processes of the demo by name, each with a log file, in a group that is killed with all its children."""

    def __init__(self, folder: Path, logs: Path) -> None:
        self.folder = folder
        self.logs = logs
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *arguments: str) -> None:
        """Start Python with these arguments. The terminal's Ctrl-C does not reach it."""
        with (self.logs / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                tied([sys.executable, *arguments]),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        """Kill the process and all its descendants with SIGKILL."""
        process = self.running.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def check(self) -> None:
        """Raise ``SystemExit`` if a process has ended that nobody has stopped."""
        if ended := [name for name, process in self.running.items() if process.poll() is not None]:
            raise SystemExit(f"Ended by itself: {', '.join(ended)}. See {self.logs}")

    def stop(self, seconds: float) -> None:
        """Terminate all processes, and kill after ``seconds`` what is left of them."""
        for process in self.running.values():
            process.terminate()
        deadline = time.monotonic() + seconds
        for name, process in list(self.running.items()):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            self.kill(name)
