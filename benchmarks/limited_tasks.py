"""1,000 limited tasks over two workers while another queue's tasks run on the same ones.

``python -m benchmarks.limited_tasks [--rounds N] [--messages N]``. Each kind, ``rate_limited`` and a plain ``retry()``
with a countdown, which is the floor, has two workers of its own with four slots each, which serve its queue and that
of the others. In each round, for each kind, the others run alone, and then among tasks that are published all at once
and run at 100 a second: what else the machine does falls on all alike. It fails if in any window more limited bodies
began than the limit, or if one did not run exactly once.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

from benchmarks.queue import wait
from benchmarks.report import Table, spread
from benchmarks.server import running_server

PACE = 0.05  # seconds between two of the others
OTHERS = 200
WORKERS = 2


class Among(NamedTuple):
    """A kind in one round. Kilobytes: of the main processes, which keep what waits, before and the most meanwhile;
    of all processes afterwards."""

    alone: list[float]
    among: list[float]
    began: list[float]
    memory: tuple[int, int, int]


def main() -> int:
    """Measure and print the tables; 1 if the limit was broken."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.limited_tasks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds after one that warms up (default: 5)")
    parser.add_argument("--messages", type=int, default=1000, help="limited tasks in a round (default: 1000)")
    options = parser.parse_args()
    rounds: dict[str, list[Among]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder, running_server() as server, ExitStack() as stack:
        os.environ["TASKLOCK_BENCH_URL"] = server.url
        os.environ["TASKLOCK_BENCH_DATABASE"] = str(Path(folder) / "db.sqlite3")
        from django.core.management import call_command

        from benchmarks.limited_app import KINDS, LIMIT, WINDOW, app

        call_command("migrate", verbosity=0)
        pids = {kind: stack.enter_context(workers(app, KINDS[kind].name)) for kind in KINDS}
        for number in range(options.rounds + 1):
            print(f"round {number}", file=sys.stderr)
            for kind in sorted(KINDS, reverse=bool(number % 2)):
                rounds[kind].append(measure(app, KINDS[kind], pids[kind], options.messages))
    print(latencies({kind: found[1:] for kind, found in rounds.items()}))
    print(f"\n{memory(rounds, options.messages)}")
    worst = [most_within(one.began, WINDOW) for one in rounds["rate_limited"]]
    runs = sorted({len(one.began) for found in rounds.values() for one in found})
    least = options.messages / LIMIT * WINDOW - WINDOW
    took = [(one.began[-1] - one.began[0]) / least for one in rounds["rate_limited"]]
    print(
        f"\n{options.messages} tasks a round, {LIMIT} per {WINDOW:g} s: most in any window {max(worst)}; runs {runs};"
    )
    print(f"from the first to the last {spread(took)} of the least possible")
    return 0 if max(worst) <= LIMIT and runs == [options.messages] else 1


@contextmanager
def workers(app: Any, kind: str) -> Iterator[Callable[[], list[int]]]:
    """Workers with four slots each, ready; gives what lists their processes, main ones first."""
    command = [sys.executable, "-m", "celery", "-A", "benchmarks.limited_app", "worker", "--concurrency=4"]
    command += ["-Q", f"{kind},other-{kind}", "-l", "ERROR"]
    command += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    names = [f"{kind}{one}@bench" for one in range(WORKERS)]
    started = [
        subprocess.Popen([*command, "-n", name], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for name in names
    ]

    def pids() -> list[int]:
        found = [process.pid for process in started]
        for pid in list(found):
            found += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        return found

    try:
        wait(lambda: len(app.control.ping(destination=names, timeout=0.5)) == WORKERS)
        yield pids
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(30)


def measure(app: Any, task: Any, pids: Callable[[], list[int]], messages: int) -> Among:
    """The others alone, and the others among so many messages of the task."""
    from benchmarks.limited_app import BEGAN, DONE, other

    store = app.backend.client

    def size() -> int:
        return sum(map(resident, pids()[:WORKERS]))

    def paced(most: list[int]) -> list[float]:
        began = time.monotonic()
        for number in range(OTHERS):
            time.sleep(max(0.0, began + PACE * number - time.monotonic()))
            other.apply_async((time.monotonic(),), queue=f"other-{task.name}")
            if number % 20 == 19:
                most.append(size())
        wait(lambda: store.llen(DONE) == OTHERS)
        return [float(one) for one in store.lrange(DONE, 0, -1)]

    store.delete(BEGAN, DONE)
    alone = paced([])
    store.delete(DONE)
    sizes = [size()]
    for number in range(messages):
        task.apply_async((number,), queue=task.name)
    among = paced(sizes)
    wait(lambda: store.llen(BEGAN) >= messages)
    began = sorted(map(float, store.lrange(BEGAN, 0, -1)))
    return Among(alone, among, began, (sizes[0], max(sizes), sum(map(resident, pids()))))


def most_within(times: list[float], window: float) -> int:
    """The most in any half-open window of that length."""
    most = start = 0
    for number, time_ in enumerate(times):
        while times[start] <= time_ - window:
            start += 1
        most = max(most, number - start + 1)
    return most


def resident(pid: int) -> int:
    """Kilobytes, with those that it shares: a child that unshares what it was forked with takes no more by that."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Rss:"):
            return int(line.split()[1])
    return 0


def latencies(rounds: dict[str, list[Among]]) -> Table:
    """Medians of each round beside those of the others alone, of the same round and kind."""
    result = Table(
        f"Latency of {OTHERS} tasks of another queue among limited ones, publication to start",
        ["limited by", "of alone (median)", "of alone (p95)", "median ms alone", "among"],
    )
    for kind, found in rounds.items():
        middle = [median(one.among) / median(one.alone) for one in found]
        slow = [quantiles(one.among, n=20)[18] / quantiles(one.alone, n=20)[18] for one in found]
        alone = 1000 * median(latency for one in found for latency in one.alone)
        among = 1000 * median(latency for one in found for latency in one.among)
        result.add(kind, spread(middle), spread(slow), f"{alone:.1f}", f"{among:.1f}")
    return result


def memory(rounds: dict[str, list[Among]], messages: int) -> Table:
    """What a waiting message takes in the workers, and what is left when all have run."""
    result = Table(
        "Memory of two workers and their processes",
        ["limited by", "kB for each message at most", "after each round, in units of after the first"],
    )
    for kind, found in rounds.items():
        waiting = [(one.memory[1] - one.memory[0]) / messages for one in found[1:]]  # the first one warms up
        after = [one.memory[2] / found[0].memory[2] for one in found]
        result.add(kind, spread(waiting), " ".join(f"{one:.3f}" for one in after))
    return result


if __name__ == "__main__":
    sys.exit(main())
