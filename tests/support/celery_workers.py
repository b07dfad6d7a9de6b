"""Real Celery workers, killed as in production; started as there but for their imports, see ``forked``.

Each is a process group of its own. ``Guardian`` sees to it that none outlives the tests,
even if those are killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.celery_site.configuration import READY
from tests.support.celery_site.forked import start
from tests.support.celery_site.journal import note
from tests.support.processes import Process, processes
from tests.support.stores import eventually

__all__ = ["Guardian", "Worker"]

PATIENCE = 30.0  # seconds a process may take to start, stop or die


class Guardian:
    """A tiny process that waits for the end of this one, to kill the groups it was told of."""

    def __init__(self) -> None:
        command = [sys.executable, "-SEc", _GUARD]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, text=True)

    def watch(self, group: int) -> None:
        """Kill this group, too."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{group}\n")
        self._process.stdin.flush()

    def dismiss(self) -> None:
        """There is nobody left to kill."""
        assert self._process.stdin is not None
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()


_GUARD = """
import os, sys
groups = [int(line) for line in sys.stdin]
for group in groups:
    try: os.killpg(group, 9)
    except OSError: pass
"""


class Worker:
    """One ``celery worker`` with its children. Made by ``Site.worker``, which waits until it takes messages."""

    def __init__(
        self, name: str, options: Sequence[str], environment: Mapping[str, str], folder: Path, guardian: Guardian
    ) -> None:
        self.name = name
        """Its node name, for remote control."""
        short = name.partition("@")[0]
        self.log_file = folder / f"{short}.log"
        self._ready = folder / f"{short}.ready"
        arguments = ["-A", "tests.support.celery_site.app", "worker", "-n", name, *options]
        with self.log_file.open("wb") as log:
            self.process = start(arguments, {**os.environ, **environment, READY: str(self._ready)}, log)
        guardian.watch(self.pid)

    @property
    def pid(self) -> int:
        """Of the main process, which is the group's leader."""
        return self.process.pid

    def wait_until_ready(self) -> None:
        """Until it takes messages."""

        def ready() -> bool:
            assert self.process.poll() is None, f"{self.name} ended with {self.process.returncode}:\n{self.log()}"
            return self._ready.exists()

        eventually(ready, PATIENCE, lambda: f"{self.name} is ready\n{self.log()}")

    def log(self) -> str:
        """What it said so far."""
        return self.log_file.read_text(errors="replace")

    def alive(self) -> bool:
        """Whether its main process lives."""
        return self.process.poll() is None

    def members(self) -> list[Process]:
        """Everyone in its group who lives: also those whom a dead main process left behind."""
        self.process.poll()  # a child that nobody asks about stays a zombie
        return [one for one in processes() if one.group == self.pid]

    def children(self) -> list[int]:
        """The pids of the main process's own children: the pool's, if it is prefork."""
        return sorted(one.pid for one in self.members() if one.parent == self.pid)

    # Ends

    def kill(self) -> None:
        """``kill -9`` of all of it at once, as when the machine fails; returns when nobody is left."""
        for one in self.members():
            note("killed", pid=one.pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._gone()

    def kill_one(self, pid: int) -> None:
        """``kill -9`` of one process; returns when it is dead. With the main process die all: Celery has the kernel
        kill the children whose parent is killed.
        """
        if pid == self.pid:
            for one in self.members():
                note("killed", pid=one.pid)
            self.process.kill()
            self._gone()
            return
        assert any(one.pid == pid for one in self.members()), f"{pid} is not of {self.name}"
        note("killed", pid=pid)
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: all(one.pid != pid for one in self.members()), PATIENCE, lambda: f"{pid} is dead")

    def _gone(self) -> None:
        self.process.wait(PATIENCE)
        eventually(lambda: not self.members(), PATIENCE, lambda: f"{self.name} is dead: {self.members()}")

    def terminate(self) -> None:
        """``SIGTERM`` to the main process: warm shutdown. A second one is less patient."""
        self.process.terminate()

    def quit(self) -> None:
        """``SIGQUIT`` to the main process: cold shutdown, or a soft one where Celery is set up for that."""
        self.process.send_signal(signal.SIGQUIT)

    def ended(self, seconds: float = PATIENCE) -> int:
        """The exit status of the main process, which must end within ``seconds``."""
        eventually(lambda: not self.alive(), seconds, lambda: f"{self.name} has ended\n{self.log()}")
        return int(self.process.returncode)
