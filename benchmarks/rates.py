"""``python -m benchmarks.rates``: rate limiters side by side, judged where the calls are made. See README.md."""

from __future__ import annotations

import argparse
import json
import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import redis

from benchmarks.children import ChildFailed, start
from benchmarks.peers import installed
from benchmarks.plots import bars
from benchmarks.project import configure
from benchmarks.rate_peers import KINDS, Limited, Ours
from benchmarks.report import Table
from benchmarks.server import Control, Server, running_server

clock = time.monotonic  # one clock for all processes of a machine


def most_within(calls: Sequence[float], window: float) -> int:
    """The most calls in any half-open window."""
    most = first = 0
    for index, at in enumerate(calls):
        while calls[first] <= at - window:
            first += 1
        most = max(most, index - first + 1)
    return most


def correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Spearman's."""
    first, second = ({value: rank for rank, value in enumerate(sorted(side))} for side in zip(*pairs, strict=True))
    squares = sum((first[one] - second[two]) ** 2 for one, two in pairs)
    return 1 - 6 * squares / (len(pairs) * (len(pairs) ** 2 - 1))


def caller(parent: Any, kind: type[Limited], arguments: tuple[Any, ...], until: float) -> None:
    """One process that calls as often as it may, until then."""
    limiter, made = kind(*arguments), []
    warm = kind(arguments[0], arguments[1] + ":warm", 1_000, 1)
    warm.acquire()
    parent.send("ready")
    parent.receive()
    ends = clock() + until
    thread = threading.Thread(target=work, args=(limiter, made, ends), daemon=True)
    thread.start()
    thread.join(until + 0.2)
    parent.send([at for at in made if at < ends])
    parent.receive()


def work(limiter: Limited, made: list[float], ends: float) -> None:
    """Call."""
    while clock() < ends:
        limiter.acquire()
        made.append(clock())


def waiters(parent: Any, kind: type[Limited], arguments: tuple[Any, ...], number: int) -> None:
    """One process with so many threads, each of which waits for one call."""
    limiter, made = kind(*arguments), []
    warm, begin = kind(arguments[0], arguments[1] + ":warm", 10_000, 1), threading.Event()
    some = threading.Semaphore(50)

    def wait(after: float, here: threading.Barrier) -> None:
        here.wait()
        with some:
            warm.acquire()  # many at once, for as many connections as will be needed
        here.wait()
        begin.wait()
        time.sleep(after)
        arrived = clock()
        limiter.acquire()
        made.append((arrived, clock()))

    here = threading.Barrier(number + 1)
    threads = [threading.Thread(target=wait, args=(random.uniform(0, 0.8), here), daemon=True) for _ in range(number)]
    for thread in threads:
        thread.start()
    here.wait()
    here.wait()
    parent.send("ready")
    parent.receive()
    begin.set()
    for thread in threads:
        thread.join(60)
    parent.send(made)
    parent.receive()


def crowd(parent: Any, kind: type[Limited], arguments: tuple[Any, ...], number: int, load: str, seconds: float) -> None:
    """One process of a crowd of ``number`` threads that call again and again.

    Steady: as often as they may. Bursty: all that wait for nothing come at once, at each whole second. Skewed: three
    quarters of the threads are in one process.
    """
    limiter, made = kind(*arguments), []
    kind(arguments[0], arguments[1] + ":warm", 10_000, 1).acquire()
    parent.send("ready")
    first = parent.receive() == 0
    share = (number * 3 // 4 if first else number // 12) if load == "skewed" else number // 4
    began = clock()

    def call() -> None:
        while clock() < began + seconds:
            if load == "bursty":
                time.sleep(1 - clock() % 1)
            limiter.acquire()
            made.append(clock())

    threads = [threading.Thread(target=call, daemon=True) for _ in range(share)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    parent.send([(at, began + 2 <= at < began + seconds) for at in made])
    parent.receive()


def crowds(server: Server, limit: int, window: float, seconds: float) -> Table:
    """What crowds of waiters use of ours."""
    table = Table(
        f"{limit} per {window:g} s, crowds in four processes",
        ["load", "waiters", "worst window", "use of the quota", "trips per call"],
    )
    client = redis.Redis.from_url(server.url)
    for load in ("steady", "bursty", "skewed"):
        for number in (200, 1200):
            table.progress(f"{load}: {number} waiters")
            client.flushall()
            client.config_resetstat()
            arguments = (server.url, f"{load}:{number}", limit, window)
            made = together(crowd, 4, Ours, arguments, number, load, seconds, seconds=seconds + 200)
            scripts: dict[str, Any] = client.info("commandstats")  # type: ignore[assignment]
            trips = sum(scripts.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha", "eval"))
            calls = sorted(at for at, _ in made)
            used = sum(counted for _, counted in made) / (limit * (seconds - 2) / (window * 1.05))
            figures = most_within(calls, window), used, trips / len(calls)
            table.add(load, str(number), f"{figures[0]}", f"{figures[1]:.3f}", f"{figures[2]:.2f}")
            table.data[f"{load} {number}"] = figures
    client.close()
    return table


def together(
    work: Callable[..., None],
    processes: int,
    *arguments: Any,
    seconds: float,
    between: Callable[[], object] = lambda: None,
) -> list[Any]:
    """What so many processes report that begin at once. ``between`` is done when all are ready, and again when all have
    reported and are still connected."""
    children = [start(work, *arguments) for _ in range(processes)]
    try:
        for child in children:
            child.receive(20)
        between()
        for number, child in enumerate(children):
            child.send(number)
        found = [one for child in children for one in child.receive(seconds)]
        between()
        for child in children:
            child.send("end")
        return found
    finally:
        for child in children:
            child.join()


def measure(server: Server, kind: type[Limited], limit: int, window: float, seconds: float) -> dict[str, float]:
    """One round."""
    control = Control(server.port)
    control.flush()
    calls = sorted(together(caller, 8, kind, (server.url, "steady", limit, window), seconds, seconds=seconds + 30))
    found: dict[str, float] = {"worst": most_within(calls, window), "use": len(calls) / (limit * seconds / window)}
    control.flush()
    arguments = (server.url, "waiters", limit // 2, window)
    reads: list[int] = []
    made = together(waiters, 4, kind, arguments, 50, seconds=90, between=lambda: reads.append(control.counters()[0]))
    found["trips"] = (reads[1] - reads[0]) / 200
    found["rank"] = correlation([(arrived, called) for arrived, called in made])
    found["waiting worst"] = most_within(sorted(called for _, called in made), window)
    found["seconds"] = max(called for _, called in made) - min(arrived for arrived, _ in made)
    control.close()
    return found


def memory(server: Server, kind: type[Limited], limit: int) -> int:
    """Bytes of all keys of a limiter whose window is full."""
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
        limiter = kind(server.url, "full", limit, 60.0)
        for _ in range(limit):
            limiter.acquire()
        return sum(int(client.memory_usage(key, samples=0) or 0) for key in client.scan_iter())


def draw(rounds: dict[str, list[dict[str, float]]], limit: int, directory: Path) -> None:
    """Write the plots of a run."""
    plots = {
        "rates-worst": ("The most calls in any window, of the limit (1: exact; more is over it)", "worst", limit),
        "rates-use": ("Calls made of those allowed, by eight processes that call as often as they may", "use", 1),
    }
    directory.mkdir(parents=True, exist_ok=True)
    for name, (title, key, unit) in plots.items():
        figures = {label: [one[key] / unit for one in found] for label, found in rounds.items() if found}
        (directory / f"{name}.svg").write_text(bars(title, figures), "utf-8")


def main() -> int:
    """Measure, print the tables; 1 if a limiter of ours let more through than its limit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rates", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds in random order (default: 5)")
    parser.add_argument("--limit", type=int, default=100, help="calls in a window (default: 100)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of steady calling in a round (default: 5)")
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="limiters whose label contains it")
    parser.add_argument("--crowds", action="store_true", help="only crowds of 200 and 1,200 that wait for ours")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's numbers there")
    parser.add_argument("--plots", type=Path, metavar="DIRECTORY", help="draw what was let through and used, as SVG")
    options = parser.parse_args()
    window = 1.0
    kinds = [kind for kind in KINDS if not kind.package or installed(kind)]
    kinds = [kind for kind in kinds if not options.only or any(text in kind.label for text in options.only)]
    missing = [kind.package for kind in KINDS if kind.package and not installed(kind)]
    rounds: dict[str, list[dict[str, float]]] = {kind.label: [] for kind in kinds}
    table = Table(
        f"{options.limit} per {window:g} s",
        ["limiter", "worst window", "use of the quota", "trips per grant", "rank correlation", "worst, waiting",
         "[s for 200]", "bytes at 100", "at 1000"],
    )  # fmt: skip
    with running_server() as server:
        configure(server.url)
        if options.crowds:
            table = crowds(server, options.limit, window, max(10.0, options.seconds))
            print(table)
            return 1 if any(worst > options.limit for worst, *_ in table.data.values()) else 0
        for number in range(options.rounds):
            for kind in random.sample(kinds, len(kinds)):
                table.progress(f"round {number + 1}: {kind.label}")
                with table.failures(kind.label):
                    rounds[kind.label].append(measure(server, kind, options.limit, window, options.seconds))
        sizes = {}
        for kind in kinds:
            with table.failures(kind.label):
                try:
                    sizes[kind.label] = [memory(server, kind, limit) for limit in (100, 1000)]
                except Exception as error:
                    raise ChildFailed(repr(error)) from error
    over = 0
    for kind in kinds:
        found = rounds[kind.label]
        if not found:
            continue
        middle = {key: median(one[key] for one in found) for key in found[0]}
        worst = max(one["worst"] for one in found)
        waiting = max(one["waiting worst"] for one in found)
        over += issubclass(kind, Ours) and (worst > options.limit or waiting > options.limit // 2)
        table.add(
            kind.label,
            f"{middle['worst']:.0f} (at most {worst:.0f})",
            f"{middle['use']:.3f}",
            f"{middle['trips']:.2f}",
            f"{middle['rank']:.3f}",
            f"{middle['waiting worst']:.0f} of {options.limit // 2} (at most {waiting:.0f})",
            f"{middle['seconds']:.1f}",
            *(f"{size:,}" for size in sizes.get(kind.label, [0, 0])),
        )
    table.data = dict(rounds)
    print(f"{options.rounds} interleaved rounds, medians.", *(f"Not installed: {name}." for name in missing))
    print(f"\n{table}")
    if options.plots:
        draw(rounds, options.limit, options.plots)
    if options.json:
        options.json.write_text(json.dumps({table.title: table.data, "bytes": sizes}, indent=1), encoding="utf-8")
    return 1 if over else 0


if __name__ == "__main__":
    raise SystemExit(main())
