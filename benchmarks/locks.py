"""What does a free lock cost beside the others?

One process acquires and releases, on one processor with the server. A lock and the floor take turns in slices, so that
what else the machine does falls on both; and the processor time of client and server is compared, which others that
want the processor do not raise.
"""

from __future__ import annotations

import os
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from benchmarks.children import Parent, start
from benchmarks.lock_kinds import BareSocket, Lock, lock_kinds
from benchmarks.report import Table, chosen, spread
from benchmarks.server import Server, one_cpu

__all__ = ["measure"]

SLICE = 0.1  # seconds
SLICES = 8
COUNTED = 100  # pairs whose round trips are counted


def measure(server: Server, *, rounds: int, only: Sequence[str] = ()) -> Table:
    """Measure each lock in a process of its own, in random order."""
    table = Table(
        "A free lock, acquired and released", "lock", "processor time, of the floor's", "the server's, of the floor's",
        "round trips",
    )  # fmt: skip
    kinds, found = chosen(lock_kinds(), only), defaultdict[str, list[tuple[float, float, float]]](list)
    cpus = os.sched_getaffinity(server.pid)
    server.pin({one_cpu()})
    try:
        for number in range(rounds):
            for kind in random.sample(kinds, len(kinds)):
                table.progress(f"locks, round {number + 1} of {rounds}: {kind.label}")
                child = start(_round, server, kind)
                with table.failures(kind.label):
                    found[kind.label].append(child.receive(60))
                child.join()
    finally:
        server.pin(cpus)
    for label, some in sorted(found.items(), key=lambda item: median(one[0] for one in item[1])):
        both, servers, trips = zip(*some, strict=True)
        table.add(label, spread(both), spread(servers), f"{median(trips):.1f}")
    figures = {label: [one[0] for one in some] for label, some in found.items()}
    table.plot(
        "locks", "Processor time of a free lock, acquired and released (bare socket: 1; less is better)", figures
    )
    return table


def _round(parent: Parent, server: Server, kind: type[Lock]) -> None:
    os.sched_setaffinity(0, {one_cpu()})
    server.client.flushall()
    floor, own = Turn(BareSocket(server.url, "floor"), server), Turn(kind(server.url, "locks"), server)
    for _ in range(SLICES):
        for turn in random.sample((floor, own), 2):
            turn.take()
    before = server.trips()
    own.lock.repeat(pairs=COUNTED)
    trips = (server.trips() - before) / COUNTED
    parent.send((own.both / floor.both, own.servers / floor.servers, trips))


class Turn:
    """A lock's slices in one process."""

    def __init__(self, lock: Lock, server: Server) -> None:
        self.lock, self.server = lock, server
        self.pairs, self.client, self.answering = 0, 0.0, 0.0
        lock.repeat(pairs=COUNTED)  # connects, and loads what is loaded on first use

    def take(self) -> None:
        """One slice."""
        client, server = time.process_time(), self.server.cpu_time()
        self.pairs += self.lock.repeat(seconds=SLICE)
        self.client += time.process_time() - client
        self.answering += self.server.cpu_time() - server

    @property
    def both(self) -> float:
        """Seconds of processor time for a pair, of client and server."""
        return (self.client + self.answering) / self.pairs

    @property
    def servers(self) -> float:
        """Seconds of the server's."""
        return self.answering / self.pairs
