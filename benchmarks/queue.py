"""Whether messages that wait for one lock delay those that do not: 200 of one key, and 50 of other keys meanwhile.

``python -m benchmarks.queue [--rounds N] [--messages N]``. Two workers with four slots each. The same 50 are
published at the same pace alone, among 200 that have a key of their own each, and among 200 that share one.
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
from statistics import median, quantiles
from typing import Any

from benchmarks.report import Table, spread
from benchmarks.server import running_server

OTHERS = 50
PACE = 0.1  # seconds between two of the others
SECONDS = 0.02  # of the body of those that line up
LIMIT = 120.0  # seconds
KINDS = ("alone", "among as many of different keys", "among many of one key")


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.queue", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds, kinds in random order (default: 5)")
    parser.add_argument("--messages", type=int, default=200, help="messages that line up in a round (default: 200)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running_server() as server:
        os.environ["TASKLOCK_BENCH_URL"] = server.url
        os.environ["TASKLOCK_BENCH_DATABASE"] = str(Path(folder) / "db.sqlite3")
        from django.core.management import call_command

        from benchmarks.queue_app import app

        call_command("migrate", verbosity=0)
        taken: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
        numbers = count()
        with workers(app, 2):
            for number in range(options.rounds + 1):  # the first one warms up
                for kind in random.sample(KINDS, len(KINDS)):
                    print(f"round {number}: {kind}", file=sys.stderr)
                    latencies = measure(app, kind, options.messages, numbers)
                    if number:
                        taken[kind].append(latencies)
    print(table(taken))
    return 0


@contextmanager
def workers(app: Any, number: int) -> Iterator[None]:
    """Workers with four slots each; there when all of them answer."""
    command = [sys.executable, "-m", "celery", "-A", "benchmarks.queue_app", "worker", "--concurrency=4", "-l", "ERROR"]
    command += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    started = [
        subprocess.Popen([*command, "-n", f"w{one}@bench"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for one in range(number)
    ]
    try:
        wait(lambda: len(app.control.ping(timeout=0.5)) == number)
        yield
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(30)


def measure(app: Any, kind: str, messages: int, numbers: Iterator[int]) -> list[float]:
    """Seconds from publication to start of each of the others."""
    from benchmarks.queue_app import DONE, line, other

    store = app.backend.client
    store.delete(DONE, "lined")
    messages = 0 if kind == "alone" else messages
    began = time.monotonic()
    for number in range(OTHERS):
        for _ in range(messages * number // OTHERS, messages * (number + 1) // OTHERS):
            line.delay("one" if kind == KINDS[2] else next(numbers), SECONDS)
        time.sleep(max(0.0, began + PACE * number - time.monotonic()))
        other.delay(next(numbers), time.monotonic())
    wait(lambda: store.llen(DONE) == OTHERS and int(store.get("lined") or 0) == messages)
    return [float(one) for one in store.lrange(DONE, 0, -1)]


def wait(condition: Any) -> None:
    """Until ``condition()``; ``SystemExit`` if that takes too long."""
    ends = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > ends:
            raise SystemExit("The workers do not come to an end.")
        time.sleep(0.05)


def table(taken: dict[str, list[list[float]]]) -> Table:
    """Medians of each round beside those of the others alone."""
    result = Table(
        "Latency of 50 tasks of other keys, publication to start",
        ["published", "of alone (median)", "median ms", "p95 ms"],
    )
    floor = [median(one) for one in taken[KINDS[0]]]
    for kind in KINDS:
        every = [latency for one in taken[kind] for latency in one]
        result.add(
            kind,
            spread([median(one) / base for one, base in zip(taken[kind], floor, strict=True)]),
            f"{1000 * median(every):.1f}",
            f"{1000 * quantiles(every, n=20)[18]:.1f}",
        )
    return result


if __name__ == "__main__":
    sys.exit(main())
