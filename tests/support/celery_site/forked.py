"""Celery workers without a second of imports for each: forked from a process that has imported what others wrote.

That is Celery, kombu, Django and redis-py; nothing of ours, no settings and no task. What a worker is from there on is
what ``python -m celery`` makes of its arguments and its environment. Those of ``tests/browser``, of the pages and of
the demo are started as in production.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import BinaryIO

__all__ = ["ForkServer", "Forked", "start"]

IMPORTED = (
    "celery.__main__",
    "celery.apps.worker",
    "celery.backends.redis",
    "celery.bin.celery",
    "celery.bin.worker",
    "celery.concurrency.prefork",
    "celery.fixups.django",
    "celery.worker.consumer",
    "celery.worker.pidbox",
    "kombu.transport.pyamqp",
    "kombu.transport.redis",
    "django.contrib.admin.apps",
    "django.core.checks",
    "django.db.backends.sqlite3.base",
    "django.db.models",
    "redis.asyncio",
)
"""Modules that need no settings."""
ROOT = Path(__file__).parents[3]


class Forked:
    """A process as ``subprocess.Popen`` has it: as much of it as a ``Worker`` needs."""

    def __init__(self, keeper: BinaryIO) -> None:
        self._keeper = keeper
        self.pid = int(keeper.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit status, if it has ended."""
        if self.returncode is None and select.select([self._keeper], [], [], 0)[0]:
            self.returncode = int(self._keeper.readline())
            self._keeper.close()
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Its exit status; it must end within ``timeout`` seconds."""
        if self.returncode is None:
            select.select([self._keeper], [], [], timeout)
        if (status := self.poll()) is None:
            raise subprocess.TimeoutExpired("celery", timeout)
        return status

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """``SIGTERM``."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """``kill -9``."""
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The process that workers are forked from. It ends with this one."""

    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", __name__]
            self._process = subprocess.Popen(command, cwd=ROOT, stdin=theirs)

    def fork(self, arguments: Sequence[str], environment: Mapping[str, str], log: BinaryIO) -> Forked:
        """Run ``python -m celery`` with these arguments, in a session of its own; ``log`` has what it says."""
        said, saying = os.pipe()
        try:
            request = json.dumps({"arguments": arguments, "environment": dict(environment)}).encode()
            socket.send_fds(self._requests, [request], [saying, log.fileno()])
        finally:
            os.close(saying)
        return Forked(os.fdopen(said, "rb", buffering=0))


def start(arguments: Sequence[str], environment: Mapping[str, str], log: BinaryIO) -> Forked | subprocess.Popen[bytes]:
    """Run ``python -m celery``: forked, but for pools that patch what was imported before they could."""
    if not {"--pool=gevent", "--pool=eventlet"}.isdisjoint(arguments):
        command = [sys.executable, "-m", "celery", *arguments]
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return _server().fork(arguments, environment, log)


@cache
def _server() -> ForkServer:
    return ForkServer()


def _serve() -> None:
    """Fork whatever is asked for on standard input, until that is closed. Returns in the workers."""
    for module in IMPORTED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    requests = socket.socket(fileno=0)
    while True:
        request, descriptors, _, _ = socket.recv_fds(requests, 1 << 20, 2)
        if not request:
            sys.exit()
        if os.fork() == 0:
            requests.detach()
            _keep(*descriptors)
            _become(**json.loads(request))
            return
        for descriptor in descriptors:
            os.close(descriptor)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _keep(saying: int, log: int) -> None:
    """Fork once more, wait for the worker, and say how it ended. Returns in the worker."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(saying)
        os.close(log)
        return
    os.close(log)
    os.write(saying, b"%d\n" % pid)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(BrokenPipeError):
        os.write(saying, b"%d\n" % status)
    os._exit(0)


def _become(arguments: list[str], environment: dict[str, str]) -> None:
    """Be what ``python -m celery`` is at its beginning."""
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    sys.argv = ["celery", *arguments]


if __name__ == "__main__":
    _serve()
    from celery.__main__ import main

    main()
