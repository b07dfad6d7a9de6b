"""What does a lock cost a Celery task, to publish it and to run it?

Messages have a key of their own each, so nothing is ever busy; one worker with one slot runs them.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.children import ChildFailed
from benchmarks.report import Table, spread
from benchmarks.server import Server

__all__ = ["measure"]

MESSAGES = 500
LIMIT = 120.0  # seconds


class Spent(NamedTuple):
    """Seconds of processor time for all messages of a round."""

    publishing: float
    running: float

    @property
    def both(self) -> float:
        """Of the publisher and the worker."""
        return self.publishing + self.running


def measure(server: Server, *, rounds: int, only: Sequence[str] = ()) -> Table:
    """Publish and run messages of each task, in random order."""
    from benchmarks.tasks_app import COUNTER, KINDS, NO_LOCK, app

    table = Table("A Celery task: processor time, of a task without a lock", "task", "published", "run", "both")
    kinds = [one for one in KINDS if one == NO_LOCK or not only or any(text in one for text in only)]
    spent, numbers = defaultdict[str, list[Spent]](list), count()
    for number in range(rounds + 1):  # the first one warms up
        for label in random.sample(kinds, len(kinds)):
            table.progress(f"tasks, round {number} of {rounds}: {label}")
            app.backend.client.delete(COUNTER)
            used = time.process_time()
            for _ in range(MESSAGES):
                KINDS[label].delay(next(numbers))
            used = time.process_time() - used
            with table.failures(label), worker() as pid:
                ran = run(app, COUNTER, pid)
                if number:
                    spent[label].append(Spent(used, ran))
    floors = spent[NO_LOCK]
    for label, some in spent.items():
        pairs = list(zip(some, floors, strict=True))
        table.add(
            label,
            spread([one.publishing / floor.publishing for one, floor in pairs]),
            spread([one.running / floor.running for one, floor in pairs]),
            spread([one.both / floor.both for one, floor in pairs]),
        )
    figures = {label: [one.both / floor.both for one, floor in zip(some, floors, strict=True)]
               for label, some in spent.items()}  # fmt: skip
    table.plot("tasks", "Processor time of a Celery task, published and run (no lock: 1; less is better)", figures)
    return table


@contextmanager
def worker() -> Iterator[int]:
    """A worker with one slot: its pid."""
    command = [sys.executable, "-m", "celery", "-A", "benchmarks.tasks_app", "worker", "--pool", "solo", "-l", "ERROR"]
    process = subprocess.Popen(
        [*command, "--without-gossip", "--without-mingle", "--without-heartbeat"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process.pid
    finally:
        process.terminate()
        process.wait(30)


def run(app: Any, counter: str, pid: int) -> float:
    """Wait until all have run. Return the worker's seconds from the first tenth on, so that starting does not count."""
    ends, first, before = time.monotonic() + LIMIT, 0, 0.0
    while (done := int(app.backend.client.get(counter) or 0)) < MESSAGES:
        if not first and done >= MESSAGES // 10:
            first, before = done, cpu_time(pid)
        if time.monotonic() > ends:
            raise ChildFailed(f"only {done} of {MESSAGES} messages were run")
        time.sleep(0.002)
    return (cpu_time(pid) - before) * MESSAGES / (MESSAGES - first)


def cpu_time(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
