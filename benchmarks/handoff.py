"""From A's call of release to the return of B's blocked acquire, A and B being two processes."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from itertools import chain
from statistics import median, quantiles

from benchmarks.adapters import Adapter, Lock
from benchmarks.children import ChildFailed, Parent, start
from benchmarks.floors import BlpopWake
from benchmarks.report import Table, spread
from benchmarks.server import Control, Server

__all__ = ["measure"]

PER_ROUND = 30
HOLDING = (0.05, 0.15)  # seconds A holds on while B is blocked: longer than a 100 ms poll is out of step


def measure(server: Server, kinds: Sequence[type[Adapter]], *, rounds: int) -> Table:
    """``rounds`` rounds of 30 hand-offs each, adapters in random order."""
    kinds = [kind for kind in kinds if kind.waits and not kind.only_pairs]
    if BlpopWake not in kinds:
        kinds.append(BlpopWake)
    taken: dict[str, list[list[float]]] = {kind.label: [] for kind in kinds}
    control = Control(server.port)
    table = Table(
        "Hand-off: A's release called to B's acquire returned",
        ["adapter", "waits by", "of BLPOP floor (median)", "median ms", "p99 ms", "max ms", "n"],
    )
    for number in range(rounds):
        for kind in random.sample(kinds, len(kinds)):
            table.progress(f"hand-off, round {number + 1} of {rounds}: {kind.label}")
            control.flush()
            with table.failures(kind.label):
                taken[kind.label].append(_round(server, kind))
    control.close()
    floor = [median(batch) for batch in taken[BlpopWake.label]]
    pooled = {label: list(chain.from_iterable(batches)) for label, batches in taken.items()}
    for kind in sorted(kinds, key=lambda kind: median(pooled[kind.label] or [0])):
        batches, every = taken[kind.label], pooled[kind.label]
        if not batches:
            continue
        table.add(
            kind.label,
            kind.waits,
            spread([median(batch) / base for batch, base in zip(batches, floor, strict=False)]),
            f"{median(every):.2f}",
            f"{quantiles(every, n=100, method='inclusive')[98]:.2f}",
            f"{max(every):.2f}",
            str(len(every)),
        )
    table.data = {label: {"ms": batches} for label, batches in taken.items()}
    return table


def _round(server: Server, kind: type[Adapter]) -> list[float]:
    """Milliseconds of each hand-off. A and B change parts every time."""
    first, second = start(_peer, server.url, kind), start(_peer, server.url, kind)
    taken = []
    try:
        for number in range(PER_ROUND + 2):
            a, b = (first, second) if number % 2 else (second, first)
            a.send("hold")
            a.receive(15)
            b.send("wait")
            b.receive(15)
            time.sleep(random.uniform(*HOLDING))
            a.send("release")
            released, acquired = a.receive(15), b.receive(15)
            if acquired < released:
                raise ChildFailed("B was given a lock that A still held")
            if number >= 2:  # the first two connect and load scripts
                taken.append((acquired - released) * 1000)
            b.send("release")
            b.receive(15)
    finally:
        for child in (first, second):
            child.join()
    return taken


def _peer(parent: Parent, url: str, kind: type[Adapter]) -> None:
    """Obey the coordinator until it hangs up. CLOCK_MONOTONIC is one clock for both processes."""
    lock = kind(url, "handoff")
    assert isinstance(lock, Lock)
    while True:
        try:
            order = parent.receive()
        except EOFError:
            return
        if order == "hold":
            lock.acquire()
            parent.send(None)
        elif order == "wait":
            parent.send(None)
            lock.acquire()
            parent.send(time.monotonic())
        else:
            called = time.monotonic()
            lock.release()
            parent.send(called)
