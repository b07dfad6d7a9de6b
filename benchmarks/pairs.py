"""Uncontended acquire + release, next to two floors in slices of the same process.

Client and server share one CPU, and an adapter and both floors take turns in slices of
a tenth of a second, so that whatever else the machine does falls on all three alike.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from benchmarks.adapters import Adapter
from benchmarks.children import Parent, one_cpu, start
from benchmarks.floors import BareSocket, RedisPy
from benchmarks.report import Table, spread
from benchmarks.server import Control, Server

__all__ = ["measure"]

COUNTED = 200  # pairs over which round trips are counted
WARM_UP = 100


@dataclass
class Result:
    """One adapter's rounds."""

    of_socket: list[float] = field(default_factory=list)
    of_redis_py: list[float] = field(default_factory=list)
    per_second: list[float] = field(default_factory=list)
    trips: list[float] = field(default_factory=list)
    commands: list[float] = field(default_factory=list)


def measure(server: Server, kinds: Sequence[type[Adapter]], *, rounds: int, seconds: float) -> Table:
    """``rounds`` rounds in random order; each adapter is measured for ``seconds`` a round."""
    results = {kind.label: Result() for kind in kinds}
    table = Table(
        "Uncontended acquire + release",
        ["adapter", "of bare socket", "of redis-py floor", "round trips/pair", "commands/pair", "(pairs/s)"],
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
            spread(result.of_redis_py),
            f"{median(result.trips):.2f}",
            f"{median(result.commands):.2f}",
            spread(result.per_second, digits=0),
        )
    table.data = {label: vars(result) for label, result in results.items()}
    return table


def _add(result: Result, socket: float, redis_py: float, own: float, trips: float, commands: float) -> None:
    result.of_socket.append(own / socket)
    result.of_redis_py.append(own / redis_py)
    result.per_second.append(own)
    result.trips.append(trips)
    result.commands.append(commands)


def _round(parent: Parent, server: Server, kind: type[Adapter], seconds: float) -> None:
    os.sched_setaffinity(0, {one_cpu()})
    control = Control(server.port)
    control.flush()
    turns = [BareSocket(server.url, "floor"), RedisPy(server.url, "floor"), kind(server.url, "pairs")]
    for adapter in turns:
        adapter.repeat(WARM_UP)
    cycles = max(1, round(seconds / 0.1))
    rates: list[list[float]] = [[], [], []]
    for _ in range(cycles):
        for index in random.sample(range(3), 3):
            rates[index].append(turns[index].run(0.1))
    before = control.counters()
    turns[2].repeat(COUNTED)
    after = control.counters()
    trips, commands = ((b - a) / COUNTED for a, b in zip(before, after, strict=True))
    parent.send((*(median(rate) for rate in rates), trips, commands))
