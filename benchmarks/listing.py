"""What listing costs with many live locks, and what the indexes that it needs cost every acquire + release.

``python -m benchmarks.listing [--locks N] [--whole N] [--rounds N] [--before DIRECTORY]``. ``DIRECTORY`` holds another
version of the package (``git archive COMMIT | tar -x -C DIRECTORY``); its acquire + release takes turns with ours.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import redis

from benchmarks.project import configure
from benchmarks.report import Table, spread
from benchmarks.server import Server, running_server

ROWS = 100  # on a page
MANY = 500  # on a long one
TASKS = 50
RARE = 1000  # one name in so many has the rare text
CHILD = """
import os, sys, time
from django.conf import settings
settings.configure(TASKLOCK={"LOCATION": sys.argv[1]}, INSTALLED_APPS=[])
from django_tasklock.backends.redis import RedisBackend
from django_tasklock.conf import get_settings
try:
    from django_tasklock.types import AcquireRequest
except ImportError:  # its name before 0.2
    from django_tasklock.types import Ask as AcquireRequest
backend = RedisBackend(get_settings())
holder = '{"host":"web1","pid":4711,"boot":"%s","task":"videos.tasks.process","task_id":"%s"}' % ("b" * 32, "i" * 36)

def run(seconds):
    pairs, ends = 0, time.perf_counter() + seconds
    while time.perf_counter() < ends:
        for _ in range(50):
            token = os.urandom(16).hex()
            backend.acquire(AcquireRequest("bench:pair", token, 60_000, 3_600_000, holder))
            backend.release("bench:pair", token)
        pairs += 50
    return pairs

run(0.2)
for line in sys.stdin:
    used, began = time.process_time(), time.perf_counter()
    pairs = run(float(line))
    print(pairs, time.perf_counter() - began, time.process_time() - used, flush=True)
"""


def main() -> int:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.listing", description=__doc__)
    parser.add_argument("--locks", type=int, default=100_000, help="live locks (default: 100000)")
    parser.add_argument("--whole", type=int, default=10_000, help="live locks that are listed whole (default: 10000)")
    parser.add_argument("--rounds", type=int, default=9, help="rounds in random order (default: 9)")
    parser.add_argument("--before", type=Path, help="a directory with the version to compare acquire + release with")
    options = parser.parse_args()
    with running_server() as server:
        configure(server.url)
        tables = []
        if options.before:
            tables.append(pairs(server, options.before, options.rounds, 0))
        fill(options.whole)
        tables.append(whole(server, options.whole, options.rounds))
        fill(options.locks)
        tables.append(pages(options.locks, options.rounds))
        if options.before:
            tables.append(pairs(server, options.before, options.rounds, options.locks))
    for table in tables:
        print(f"\n{table}")
    return 0


def fill(locks: int) -> None:
    """Live locks in random orders of lease and timeout."""
    from django_tasklock.backends import get_backend
    from django_tasklock.types import AcquireRequest

    backend = get_backend()
    print(f"taking {locks:,} locks", file=sys.stderr)
    for number in range(locks):
        kind = "rare" if number % RARE == 0 else "video"
        holder = f'{{"host":"web{number % 9}","pid":{number},"task":"videos.tasks.work{number % TASKS}","task_id":"x"}}'
        lease, hold = random.randint(3_600_000, 7_200_000), random.randint(7_200_000, 9_000_000)
        backend.acquire(AcquireRequest(f"{kind}:{number}", os.urandom(16).hex(), lease, hold, holder))


def whole(server: Server, locks: int, rounds: int) -> Table:
    """All of them in one list, in units of a bare read of an index and its keys: CPU time of client and server."""
    from django_tasklock import list_all_task_locks
    from django_tasklock.backends import get_backend

    backend = get_backend()
    client = redis.Redis.from_url(server.url)

    def bare() -> object:
        index = client.zrange("task_lock#index", 0, -1, withscores=True)
        return client.mget([key for key, _ in index])

    asked: dict[str, Callable[[], object]] = {
        "a bare index and MGET": bare,
        "`backend.records`": lambda: backend.records(limit=locks),
        "`list_all_task_locks()`": list_all_task_locks,
    }
    taken: dict[str, list[float]] = {label: [] for label in asked}
    lasted: dict[str, list[float]] = {label: [] for label in asked}
    for number in range(rounds + 1):  # the first one warms up
        print(f"whole lists, round {number}", file=sys.stderr)
        for label in random.sample(list(asked), len(asked)):
            used, began, at = server.cpu_time(), time.process_time(), time.perf_counter()
            for _ in range(5):
                asked[label]()
            if number:
                taken[label].append(time.process_time() - began + server.cpu_time() - used)
                lasted[label].append((time.perf_counter() - at) / 5 * 1000)
    client.close()
    table = Table(f"All of {locks:,} live locks, CPU of both sides", ["what", "of the bare read", "(ms)"])
    for label, times in taken.items():
        ratio = [mine / bare for mine, bare in zip(times, taken["a bare index and MGET"], strict=True)]
        table.add(label, spread(ratio), spread(lasted[label]))
    table.data = taken
    return table


def pages(locks: int, rounds: int) -> Table:
    """Every page and count in units of one look at one lock."""
    from django_tasklock.backends import get_backend
    from django_tasklock.backends.contract import lists
    from django_tasklock.backends.contract.lists import Query

    backend = get_backend()
    names = [record.name for record in backend.records(limit=10)]
    by_age = Query(order="age", descending=True, limit=ROWS)
    queries = {
        "10 rows, by expiry": Query(limit=10),
        f"{ROWS} rows, by expiry, first": Query(limit=ROWS),
        f"{ROWS} rows, by expiry, last": Query(limit=ROWS, offset=locks - ROWS),
        f"{MANY} rows, by expiry": Query(limit=MANY),
        f"{ROWS} rows, by age, oldest first": by_age,
        f"{ROWS} rows, by time left": Query(order="left", limit=ROWS),
        "a task with one lock in 50": by_age._replace(task="videos.tasks.work7"),
        "a text in every name": by_age._replace(text="deo:"),
        "a text in one name of 1000": by_age._replace(text="rare"),
        "a text in no name": by_age._replace(text="nothing"),
    }
    asked: dict[str, Callable[[], object]] = {
        "one lock (`get`)": lambda: backend.get(names[0]),
        "counts": backend.counts,
        **{label: partial(lists.page, backend, query) for label, query in queries.items()},
    }
    taken: dict[str, list[float]] = {label: [] for label in asked}
    for number in range(rounds + 1):  # the first one warms up
        print(f"listing, round {number}", file=sys.stderr)
        for label in random.sample(list(asked), len(asked)):
            times = []
            for _ in range(5):
                began = time.perf_counter()
                asked[label]()
                times.append(time.perf_counter() - began)
            if number:
                taken[label].append(median(times))
    table = Table(f"Listing, {locks:,} live locks", ["what", "of one `get`", "of the 10 rows", "(ms)"])
    unit, small = median(taken["one lock (`get`)"]), median(taken["10 rows, by expiry"])
    for label, times in taken.items():
        ratio = [seconds / unit for seconds in times]
        table.add(label, spread(ratio, 1), f"{median(times) / small:.1f}", spread([one * 1000 for one in times]))
    table.data = taken
    return table


def pairs(server: Server, before: Path, rounds: int, locks: int) -> Table:
    """This version's acquire + release against the other's, in slices that take turns."""
    trees = {"before": before, "now": Path.cwd()}
    children = {
        label: subprocess.Popen(
            [sys.executable, "-c", CHILD, server.url],
            env={**os.environ, "PYTHONPATH": str(tree.resolve())},
            cwd=tree,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for label, tree in trees.items()
    }
    rates: list[float] = []
    costs: list[float] = []
    own: dict[str, list[float]] = {label: [] for label in trees}
    for number in range(rounds):
        print(f"acquire + release with {locks:,} others, round {number}", file=sys.stderr)
        rate, cost = {label: [0.0, 0.0] for label in trees}, {label: [0.0, 0.0] for label in trees}
        for _ in range(5):
            for label in random.sample(list(trees), 2):
                used = server.cpu_time()
                count, seconds, client = ask(children[label], 0.1)
                rate[label][0] += count
                rate[label][1] += seconds
                cost[label][0] += client + server.cpu_time() - used
                cost[label][1] += count
        for label, (count, seconds) in rate.items():
            own[label].append(count / seconds)
        rates.append(own["now"][-1] / own["before"][-1])
        costs.append((cost["now"][0] / cost["now"][1]) / (cost["before"][0] / cost["before"][1]))
    for child in children.values():
        child.communicate()
    table = Table(
        f"Acquire + release beside {locks:,} live locks, against {before}",
        ["rate, now / before", "CPU time, now / before", "(pairs/s before)", "(pairs/s now)"],
    )
    table.add(spread(rates), spread(costs), spread(own["before"], 0), spread(own["now"], 0))
    table.data = {"rates": rates, "costs": costs, **own}
    return table


def ask(child: subprocess.Popen[str], seconds: float) -> tuple[float, float, float]:
    """One slice: pairs, seconds, CPU seconds of the client."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(f"{seconds}\n")
    child.stdin.flush()
    count, taken, used = map(float, child.stdout.readline().split())
    return count, taken, used


if __name__ == "__main__":
    sys.exit(main())
