"""Uncontended acquire + release, next to two floors in slices of the same process.

Client and server share one CPU, and an adapter and both floors take turns in slices of
a tenth of a second, so that whatever else the machine does falls on all three alike.
On a busy machine that is not enough, so the CPU time of client and server together is
compared as well: others that want the CPU make a pair last longer, but not cost more.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from benchmarks.adapters import Adapter
from benchmarks.children import Parent, one_cpu, start
from benchmarks.floors import BareSocket, RedisPy
from benchmarks.report import Table, spread
from benchmarks.server import Control, Server

__all__ = ["measure"]

COUNTED = 200  # pairs over which round trips are counted
WARM_UP = 100
SLICE = 0.1  # seconds


class Cost(NamedTuple):
    """What a pair costs."""

    per_second: float
    cpu: float


@dataclass
class Result:
    """One adapter's rounds."""

    of_socket: list[float] = field(default_factory=list)
    of_socket_cpu: list[float] = field(default_factory=list)
    of_redis_py: list[float] = field(default_factory=list)
    per_second: list[float] = field(default_factory=list)
    trips: list[float] = field(default_factory=list)
    commands: list[float] = field(default_factory=list)


class Turn:
    """One adapter's slices in one process."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.rates: list[float] = []
        self.pairs = 0
        self.cpu = 0.0

    def take(self, server: Server) -> None:
        """One slice."""
        used = time.process_time() + server.cpu_time()
        pairs, seconds = self.adapter.run(SLICE)
        self.cpu += time.process_time() + server.cpu_time() - used
        self.rates.append(pairs / seconds)
        self.pairs += pairs

    @property
    def cost(self) -> Cost:
        """Its rate (the median slice's), and CPU seconds of client and server per pair."""
        return Cost(median(self.rates), self.cpu / self.pairs)


def measure(server: Server, kinds: Sequence[type[Adapter]], *, rounds: int, seconds: float) -> Table:
    """``rounds`` rounds in random order; each adapter is measured for ``seconds`` a round."""
    results = {kind.label: Result() for kind in kinds}
    table = Table(
        "Uncontended acquire + release",
        [
            "adapter",
            "of bare socket",
            "by CPU time",
            "of redis-py floor",
            "round trips/pair",
            "commands/pair",
            "(pairs/s)",
        ],
    )
    cpus = os.sched_getaffinity(server.pid)
    server.pin({one_cpu()})
    try:
        for number in range(rounds):
            for kind in random.sample(kinds, len(kinds)):
                table.progress(f"pairs, round {number + 1} of {rounds}: {kind.label}")
                child = start(_round, server, kind, seconds)
                with table.failures(kind.label):
                    _add(results[kind.label], *child.receive(seconds * 10 + 30))
                child.join()
    finally:
        server.pin(cpus)
    for label, result in sorted(results.items(), key=lambda item: -median(item[1].of_socket or [0])):
        if not result.trips:
            continue
        table.add(
            label,
            spread(result.of_socket),
            spread(result.of_socket_cpu),
            spread(result.of_redis_py),
            f"{median(result.trips):.2f}",
            f"{median(result.commands):.2f}",
            spread(result.per_second, digits=0),
        )
    table.data = {label: vars(result) for label, result in results.items()}
    return table


def _add(result: Result, floor: Cost, redis_py: Cost, own: Cost, trips: float, commands: float) -> None:
    result.of_socket.append(own.per_second / floor.per_second)
    result.of_socket_cpu.append(floor.cpu / own.cpu)
    result.of_redis_py.append(own.per_second / redis_py.per_second)
    result.per_second.append(own.per_second)
    result.trips.append(trips)
    result.commands.append(commands)


def _round(parent: Parent, server: Server, kind: type[Adapter], seconds: float) -> None:
    os.sched_setaffinity(0, {one_cpu()})
    control = Control(server.port)
    control.flush()
    turns = [Turn(BareSocket(server.url, "floor")), Turn(RedisPy(server.url, "floor")), Turn(kind(server.url, "pairs"))]
    for turn in turns:
        turn.adapter.repeat(WARM_UP)
    for _ in range(max(1, round(seconds / SLICE))):
        for turn in random.sample(turns, len(turns)):
            turn.take(server)
    before = control.counters()
    turns[2].adapter.repeat(COUNTED)
    after = control.counters()
    trips, commands = ((b - a) / COUNTED for a, b in zip(before, after, strict=True))
    parent.send((*(turn.cost for turn in turns), trips, commands))
