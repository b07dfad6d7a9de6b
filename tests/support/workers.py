"""Processes that do what they are told, statement by statement, and can be stopped and killed.

A test is the director of a play in several processes: ``a.do("claim.update(progress=40)")``
runs that in the process ``a`` and returns, or raises, what it did. So an interleaving is
forced, not hoped for, and reads from top to bottom. ``start`` does not wait for the end:
for what blocks, until another process is told something.

They are forked from a server that has imported everything and owns nothing: see ``preloaded``.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
import textwrap
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

import redis

__all__ = ["Crew", "Failed", "Trips", "Worker"]

PATIENCE = 30.0  # seconds a process may take for what does not block
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["pytest", "tests.support.preloaded"])


class Failed(Exception):
    """A process raised something that cannot be sent: its traceback."""


class Worker:
    """One process. Its names last from one statement to the next; it begins with those of ``preloaded``."""

    def __init__(self) -> None:
        self._pipe, theirs = _context.Pipe()
        self.process = _context.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self._said: list[Any] = []

    def do(self, code: str, seconds: float = PATIENCE) -> Any:
        """Run ``code`` there. Its value, if its last statement is an expression; what it raises is raised here."""
        self.start(code)
        return self.done(seconds)

    def start(self, code: str) -> Self:
        """Run ``code`` there, and do not wait."""
        self._pipe.send(textwrap.dedent(code))
        return self

    def done(self, seconds: float = PATIENCE) -> Any:
        """The value of what was started, which must end within ``seconds``."""
        what, value = self._next("done", seconds)
        if what == "failed":
            raise value
        return value

    def busy(self, seconds: float = 0.0) -> bool:
        """Whether what was started still runs, after ``seconds``."""
        return not self._pipe.poll(seconds)

    def hears(self, seconds: float = PATIENCE) -> Any:
        """The next thing that ``code`` there says with ``say(...)``, in its middle."""
        what, value = self._next("said", seconds)
        if what == "failed":
            raise value
        return value

    def tell(self, value: Any = None) -> None:
        """What ``told()``, in the middle of ``code`` there, waits for and returns."""
        self._pipe.send(value)

    def _next(self, kind: str, seconds: float) -> tuple[str, Any]:
        ends = time.monotonic() + seconds
        while True:
            if kind == "said" and self._said:
                return kind, self._said.pop(0)
            assert self._pipe.poll(max(0.0, ends - time.monotonic())), f"process {self.pid}: nothing in {seconds} s"
            try:
                what, value = self._pipe.recv()
            except EOFError:
                raise AssertionError(f"process {self.pid} has ended") from None
            if what != "said":
                return what, value
            self._said.append(value)

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def stop(self) -> None:
        """``SIGSTOP``; returns when it has stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        status = Path(f"/proc/{self.pid}/stat")
        ends = time.monotonic() + PATIENCE
        while status.exists() and status.read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < ends
            time.sleep(0.001)

    def go_on(self) -> None:
        """``SIGCONT``."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """``kill -9``; returns when it is dead."""
        self.process.kill()
        self.process.join(PATIENCE)
        assert self.process.exitcode is not None

    def end(self) -> None:
        """Kill it, stopped or not, if it lives."""
        if self.process.is_alive():
            self.kill()
        self._pipe.close()
        self.process.close()


class Crew:
    """The processes of one test; nobody is left afterwards."""

    def __init__(self) -> None:
        self._workers: list[Worker] = []

    def hire(self, code: str = "") -> Worker:
        """A new one, that has run ``code``."""
        [worker] = self.hire_many(1, code)
        return worker

    def hire_many(self, number: int, code: str = "") -> list[Worker]:
        """Several new ones, started side by side."""
        hired = [Worker() for _ in range(number)]
        self._workers += hired
        for worker in hired:
            worker.start(code)
        for worker in hired:
            worker.done()
        return hired

    def dismiss(self) -> None:
        """End all of them."""
        for worker in self._workers:
            worker.end()


class Trips:
    """Counts round trips on the server: scripts and subscriptions, which is all that locks send."""

    def __init__(self, store: redis.Redis[bytes]) -> None:
        self._store = store

    def __enter__(self) -> Self:
        self._before = self._all()
        return self

    def __exit__(self, *details: object) -> None:
        self.number = self.so_far()

    def so_far(self) -> int:
        """How many there were since the ``with`` block began."""
        return self._all() - self._before

    def _all(self) -> int:
        stats = self._store.info("commandstats")
        return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha", "eval", "subscribe"))


def _serve(pipe: Connection) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: no process outlives a killed test run
    from tests.support import preloaded

    names = {**vars(preloaded), "say": lambda value=None: pipe.send(("said", value)), "told": pipe.recv}
    while True:
        try:
            code = pipe.recv()
        except EOFError:
            return
        answer: tuple[str, Any]
        try:
            answer = "done", _run(code, names)
        except BaseException as error:
            answer = "failed", _sendable(error)
        try:
            pipe.send(answer)
        except (pickle.PicklingError, AttributeError, TypeError):
            pipe.send(("done", repr(answer[1])))


def _run(code: str, names: dict[str, Any]) -> Any:
    tree = ast.parse(code)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<told>", "exec"), names)
    if isinstance(last, ast.Expr):
        return eval(compile(ast.Expression(last.value), "<told>", "eval"), names)
    return None


def _sendable(error: BaseException) -> BaseException:
    text = "".join(traceback.format_exception(error))
    with contextlib.suppress(Exception):
        if type(pickle.loads(pickle.dumps(error))) is type(error):
            error.add_note(f"in process {os.getpid()}:\n{text}")
            return error
    return Failed(text)
