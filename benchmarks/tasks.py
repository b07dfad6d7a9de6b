"""What a lock costs a Celery task: to publish it and to run it, beside a task without any.

``python -m benchmarks.tasks [--rounds N] [--messages N]``. Messages have a key of their own each,
so nothing is ever busy; one worker, one slot.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.report import Table, spread
from benchmarks.server import running_server

FLOOR = "no lock"
LIMIT = 120.0  # seconds


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tasks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds, kinds in random order (default: 5)")
    parser.add_argument("--messages", type=int, default=500, help="messages of a kind in a round (default: 500)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running_server() as server:
        os.environ["TASKLOCK_BENCH_URL"] = server.url
        os.environ["TASKLOCK_BENCH_DATABASE"] = str(Path(folder) / "db.sqlite3")
        from django.core.management import call_command

        from benchmarks.tasks_app import COUNTER, KINDS, app

        call_command("migrate", verbosity=0)
        numbers = count()
        spent: dict[str, list[tuple[float, float]]] = {label: [] for label in KINDS}
        for number in range(options.rounds + 1):  # the first one warms up
            for label in random.sample(list(KINDS), len(KINDS)):
                print(f"round {number}: {label}", file=sys.stderr)
                app.backend.client.delete(COUNTER)
                began = time.perf_counter()
                for _ in range(options.messages):
                    KINDS[label].delay(next(numbers))
                published = time.perf_counter() - began
                with worker():
                    ran = drained(app, COUNTER, options.messages)
                if number:
                    spent[label].append((published, ran))
    print(table(spent))
    return 0


@contextmanager
def worker() -> Iterator[None]:
    """A worker with one slot, of this same app."""
    command = [sys.executable, "-m", "celery", "-A", "benchmarks.tasks_app", "worker", "--pool", "solo", "-l", "ERROR"]
    process = subprocess.Popen(
        [*command, "--without-gossip", "--without-mingle", "--without-heartbeat"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def drained(app: Any, counter: str, messages: int) -> float:
    """Seconds between the first tenth of the runs and the last run, so that starting up does not count."""
    first: float | None = None
    ends = time.perf_counter() + LIMIT
    while time.perf_counter() < ends:
        done = int(app.backend.client.get(counter) or 0)
        if first is None and done >= messages // 10:
            first, seen = time.perf_counter(), done
        if done >= messages and first is not None:
            return (time.perf_counter() - first) / (messages - seen) * messages
        time.sleep(0.002)
    raise SystemExit(f"only {done} of {messages} messages were run")


def table(spent: dict[str, list[tuple[float, float]]]) -> Table:
    """Ratios to the task without a lock of the same round."""
    shown = Table(
        "Celery tasks: time per message, in units of a task without a lock", ["task", "publish", "run", "both"]
    )
    floors = spent[FLOOR]
    for label, rounds in spent.items():
        ratios = [
            (one / first, two / second, (one + two) / (first + second))
            for (one, two), (first, second) in zip(rounds, floors, strict=True)
        ]
        shown.add(label, *(spread(column) for column in zip(*ratios, strict=True)))
    one, two = (median(column) for column in zip(*floors, strict=True))
    shown.add(f"({FLOOR}: publish {one:.2f} s, run {two:.2f} s)", "", "", "")
    return shown


if __name__ == "__main__":
    sys.exit(main())
