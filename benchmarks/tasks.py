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
from typing import Any, NamedTuple

from benchmarks.plots import bars
from benchmarks.report import Table, spread
from benchmarks.server import running_server

FLOOR = "no lock"
LIMIT = 120.0  # seconds


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tasks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds, kinds in random order (default: 5)")
    parser.add_argument("--only", action="append", default=[], help="part of a task's label; may be repeated")
    parser.add_argument("--messages", type=int, default=500, help="messages of a kind in a round (default: 500)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the ratios by CPU time there, as SVG")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running_server() as server:
        os.environ["TASKLOCK_BENCH_URL"] = server.url
        os.environ["TASKLOCK_BENCH_DATABASE"] = str(Path(folder) / "db.sqlite3")
        from django.core.management import call_command

        from benchmarks.tasks_app import COUNTER, KINDS, app

        call_command("migrate", verbosity=0)
        kinds = [one for one in KINDS if one == FLOOR or not options.only or any(part in one for part in options.only)]
        numbers = count()
        spent: dict[str, list[Spent]] = {label: [] for label in kinds}
        for number in range(options.rounds + 1):  # the first one warms up
            for label in random.sample(kinds, len(kinds)):
                print(f"round {number}: {label}", file=sys.stderr)
                app.backend.client.delete(COUNTER)
                began, cpu = time.perf_counter(), time.process_time()
                for _ in range(options.messages):
                    KINDS[label].delay(next(numbers))
                published, cpu = time.perf_counter() - began, time.process_time() - cpu
                with worker() as pid:
                    ran, busy = drained(app, COUNTER, options.messages, pid)
                if number:
                    spent[label].append(Spent(published, ran, cpu, busy))
    print(table(spent))
    if options.plot:
        title = "Processor time of a Celery task, published and run (no lock: 1; less is better)"
        figures = {label: [ratio[-1] for ratio in ratios(spent, label)] for label in spent}
        options.plot.write_text(bars(title, figures), "utf-8")
    return 0


@contextmanager
def worker() -> Iterator[int]:
    """A worker with one slot, of this same app: its pid."""
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


def drained(app: Any, counter: str, messages: int, pid: int) -> tuple[float, float]:
    """Seconds between the first tenth of the runs and the last run, so that starting up does not count; and of CPU."""
    first: float | None = None
    before = 0.0
    ends = time.perf_counter() + LIMIT
    while time.perf_counter() < ends:
        done = int(app.backend.client.get(counter) or 0)
        if first is None and done >= messages // 10:
            first, before, seen = time.perf_counter(), cpu_time(pid), done
        if done >= messages and first is not None:
            share = messages / (messages - seen)
            return (time.perf_counter() - first) * share, (cpu_time(pid) - before) * share
        time.sleep(0.002)
    raise SystemExit(f"only {done} of {messages} messages were run")


def cpu_time(pid: int) -> float:
    """Seconds of CPU that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Spent(NamedTuple):
    """Seconds for all messages of a round: of the clock, and of the CPU of publisher and worker."""

    published: float
    ran: float
    publishing: float
    running: float


def ratios(spent: dict[str, list[Spent]], label: str) -> list[tuple[float, float, float, float]]:
    """Of each round, to the task without a lock: to publish, to run, both, and both by CPU time."""
    return [
        (
            one.published / floor.published,
            one.ran / floor.ran,
            (one.published + one.ran) / (floor.published + floor.ran),
            (one.publishing + one.running) / (floor.publishing + floor.running),
        )
        for one, floor in zip(spent[label], spent[FLOOR], strict=True)
    ]


def table(spent: dict[str, list[Spent]]) -> Table:
    """Ratios to the task without a lock of the same round."""
    shown = Table(
        "Celery tasks: time per message, in units of a task without a lock",
        ["task", "publish", "run", "both", "both by CPU time"],
    )
    for label in spent:
        shown.add(label, *(spread(column) for column in zip(*ratios(spent, label), strict=True)))
    one, two, *_ = (median(column) for column in zip(*spent[FLOOR], strict=True))
    shown.add(f"({FLOOR}: publish {one:.2f} s, run {two:.2f} s)", "", "", "", "")
    return shown


if __name__ == "__main__":
    sys.exit(main())
