"""Child processes that report back, or fail loudly."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

__all__ = ["ChildFailed", "context", "start"]

context = multiprocessing.get_context("fork")
"""Forked, not spawned: every import is paid once, and it is how Celery's workers come to be."""


class ChildFailed(Exception):
    """A child raised; the text is its traceback."""


class Child:
    """A forked process and the pipe to it."""

    def __init__(self, process: Any, pipe: Connection) -> None:
        self.process = process
        self.pipe = pipe

    def receive(self, seconds: float) -> Any:
        """The child's next message; ``ChildFailed`` if it raised, died or said nothing in time."""
        if not self.pipe.poll(seconds):
            raise ChildFailed(f"no answer within {seconds} s")
        try:
            good, message = self.pipe.recv()
        except EOFError:
            raise ChildFailed(f"ended with exit code {self.process.exitcode}") from None
        if not good:
            raise ChildFailed(message)
        return message

    def send(self, message: Any) -> None:
        """Tell the child something."""
        self.pipe.send(message)

    def join(self) -> None:
        """Hang up and wait for its end; end it if it will not."""
        self.pipe.close()
        _ends.discard(self.pipe)
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


class Parent:
    """What a child sees of its parent."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def send(self, message: Any) -> None:
        """Report."""
        self._pipe.send((True, message))

    def receive(self) -> Any:
        """Wait for the next order; ``EOFError`` when the parent is gone."""
        return self._pipe.recv()


_ends: set[Connection] = set()
"""The parent's ends of the open pipes: a child closes its copies, or nobody would see the parent go."""


def start(work: Callable[..., None], *args: Any) -> Child:
    """Run ``work(parent, *args)`` in a forked child."""
    here, there = context.Pipe()
    _ends.add(here)
    process = context.Process(target=_work, args=(there, work, args), daemon=True)
    process.start()
    there.close()
    return Child(process, here)


def _work(pipe: Connection, work: Callable[..., None], args: tuple[Any, ...]) -> None:
    for end in _ends:
        end.close()
    try:
        work(Parent(pipe), *args)
    except BaseException:
        pipe.send((False, traceback.format_exc()))
