"""Eight processes on one key: how much gets through, at what cost, and to whom.

Every holder raises a counter in shared memory in two steps, giving the CPU away between
them: two holders at once would lose an update.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.adapters import Adapter, Lock
from benchmarks.children import Parent, context, start
from benchmarks.floors import RedisPy
from benchmarks.report import Table, spread
from benchmarks.server import Control, Server

__all__ = ["measure"]

PROCESSES = 8
THINK = (0, 2000)  # microseconds between a release and the next acquire
SETTLE = 0.3  # seconds before the window opens


@dataclass
class Result:
    """One adapter's rounds with one think time."""

    per_second: list[float] = field(default_factory=list)
    of_floor: list[float] = field(default_factory=list)
    trips: list[float] = field(default_factory=list)
    most_to_least: list[float] = field(default_factory=list)
    jain: list[float] = field(default_factory=list)
    lost: int = 0


def measure(server: Server, kinds: Sequence[type[Adapter]], *, rounds: int, seconds: float) -> list[Table]:
    """One table a think time; ``seconds`` is the length of each window."""
    kinds = [kind for kind in kinds if not kind.only_pairs]
    if RedisPy not in kinds:
        kinds.append(RedisPy)
    control = Control(server.port)
    results = {(kind.label, think): Result() for kind in kinds for think in THINK}
    tables = [
        Table(
            f"{PROCESSES} processes on one key, think {think} us",
            ["adapter", "waits by", "of redis-py floor", "round trips/acquisition", "most/least per process",
             "Jain index", "lost updates", "(acquired/s)"],
        )
        for think in THINK
    ]  # fmt: skip
    for number in range(rounds):
        for kind in random.sample(kinds, len(kinds)):
            tables[0].progress(f"contended, round {number + 1} of {rounds}: {kind.label}")
            with tables[0].failures(kind.label):
                _round(server, control, kind, seconds, results)
        for think in THINK:
            for kind in kinds:
                _compare(results[kind.label, think], results[RedisPy.label, think], number)
    control.close()
    for table, think in zip(tables, THINK, strict=True):
        for kind in sorted(kinds, key=lambda kind: -median(results[kind.label, think].per_second or [0])):
            _add(table, kind, results[kind.label, think])
        table.data = {kind.label: vars(results[kind.label, think]) for kind in kinds}
    return tables


def _add(table: Table, kind: type[Adapter], result: Result) -> None:
    if result.trips:
        table.add(
            kind.label,
            kind.waits or "caller retries every 1 ms",
            spread(result.of_floor),
            f"{median(result.trips):.2f}",
            spread(result.most_to_least),
            f"{median(result.jain):.3f}",
            str(result.lost),
            spread(result.per_second, digits=0),
        )


def _compare(result: Result, floor: Result, number: int) -> None:
    if len(result.per_second) > number < len(floor.per_second):
        result.of_floor.append(result.per_second[number] / floor.per_second[number])


def _round(
    server: Server, control: Control, kind: type[Adapter], seconds: float, results: dict[tuple[str, int], Result]
) -> None:
    control.flush()
    shared = context.RawArray("q", PROCESSES + 3)  # acquisitions of each, then: counter, think, stop
    workers = [start(_worker, server.url, kind, shared, index) for index in range(PROCESSES)]
    try:
        for worker in workers:
            worker.receive(20)
        for worker in workers:
            worker.send("go")
        for think in random.sample(THINK, len(THINK)):
            shared[PROCESSES + 1] = think
            time.sleep(SETTLE)
            _window(control, shared, seconds, results[kind.label, think])
        shared[PROCESSES + 2] = 1
        for worker in workers:
            worker.receive(20)
        lost = sum(shared[:PROCESSES]) - shared[PROCESSES]
        for think in THINK:
            results[kind.label, think].lost += lost
    finally:
        shared[PROCESSES + 2] = 1
        for worker in workers:
            worker.join()


def _window(control: Control, shared: Any, seconds: float, result: Result) -> None:
    start_trips, start = control.counters()[0], time.monotonic()
    before = shared[:PROCESSES]
    time.sleep(seconds)
    after = shared[:PROCESSES]
    trips, elapsed = control.counters()[0] - start_trips, time.monotonic() - start
    each = [b - a for a, b in zip(before, after, strict=True)]
    total = sum(each)
    result.per_second.append(total / elapsed)
    result.trips.append(trips / max(total, 1))
    result.most_to_least.append(max(each) / min(each) if min(each) else float("inf"))
    result.jain.append(total**2 / (PROCESSES * sum(n * n for n in each)) if total else 0.0)


def _worker(parent: Parent, url: str, kind: type[Adapter], shared: Any, index: int) -> None:
    lock = kind(url, "contended")
    assert isinstance(lock, Lock)
    lock.acquire()  # connect, and load what is loaded on first use
    lock.release()
    parent.send("ready")
    parent.receive()
    while not shared[PROCESSES + 2]:
        lock.acquire()
        value = shared[PROCESSES]
        os.sched_yield()
        shared[PROCESSES] = value + 1
        shared[index] += 1
        lock.release()
        if think := shared[PROCESSES + 1]:
            time.sleep(think / 1e6)
    parent.send("done")
