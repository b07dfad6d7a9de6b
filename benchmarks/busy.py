"""What does a busy lock cost: how soon does the next one have it, at what traffic, and who?

First two processes: one is blocked in its acquire while the other releases. Then eight in turn, two milliseconds
apart, each of which raises a counter in two steps: two holders at once would lose an update.
"""

from __future__ import annotations

import os
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from statistics import median, quantiles
from typing import Any, NamedTuple

from benchmarks.children import ChildFailed, Parent, context, start
from benchmarks.lock_kinds import Async, BlpopWake, Lock, lock_kinds
from benchmarks.report import Table, chosen, spread
from benchmarks.server import Server

__all__ = ["measure"]

HANDED = 20  # times in a round
HOLDING = (0.05, 0.15)  # seconds: longer than a poll of 100 ms is out of step
PROCESSES = 8
THINKING = 0.002  # seconds between a release and the next acquire
WINDOW = 1.5  # seconds


class Round(NamedTuple):
    """What one round showed."""

    handed: list[float]
    """Milliseconds from one's release to the other's acquire."""
    trips: float
    uneven: float
    """Turns of the busiest process for each of the least busy one."""
    lost: int


def measure(server: Server, *, rounds: int, only: Sequence[str] = ()) -> Table:
    """Measure each lock that can wait, and the callers of those that cannot, in random order."""
    table = Table(
        "A busy lock", "lock", "a blocked one is", "hand-over, of a wake-up by BLPOP", "(99 of 100 within, ms)",
        "round trips of an acquisition", "busiest of eight / least busy", "updates lost",
    )  # fmt: skip
    kinds = [kind for kind in chosen(lock_kinds(), [*only, *([BlpopWake.label] if only else [])])
             if not issubclass(kind, Async) and kind.label != "floor: bare socket"]  # fmt: skip
    found = defaultdict[str, list[Round]](list)
    for number in range(rounds):
        for kind in random.sample(kinds, len(kinds)):
            table.progress(f"busy, round {number + 1} of {rounds}: {kind.label}")
            with table.failures(kind.label):
                found[kind.label].append(Round(_hand_over(server, kind), *_compete(server, kind)))
    wake = median(median(one.handed) for one in found[BlpopWake.label])
    handed = {label: [median(one.handed) / wake for one in some] for label, some in found.items()}
    for kind in sorted(kinds, key=lambda kind: median(handed.get(kind.label, [0]))):
        if some := found.get(kind.label):
            table.add(
                kind.label,
                kind.waits,
                spread(handed[kind.label]),
                f"{quantiles([each for one in some for each in one.handed], n=100, method='inclusive')[98]:.1f}",
                f"{median(one.trips for one in some):.1f}",
                spread([one.uneven for one in some], 1),
                str(lost := sum(one.lost for one in some)),
            )
            if lost:
                table.fail(kind.label, f"{lost} updates were lost under the lock")
    table.plot("busy", "From release to the waiter's acquire (a wake-up by BLPOP: 1; less is better)", handed)
    trips = {label: [one.trips for one in some] for label, some in found.items()}
    table.plot("trips", "Round trips of an acquisition, eight processes on one lock (less is better)", trips)
    uneven = {label: [one.uneven for one in some] for label, some in found.items()}
    table.plot("fairness", "The busiest of eight processes in units of the least busy one (1: all alike)", uneven)
    return table


def _hand_over(server: Server, kind: type[Lock]) -> list[float]:
    """Milliseconds of each hand-over. The two change parts every time; CLOCK_MONOTONIC is one clock for both."""
    first, second = start(_peer, server.url, kind), start(_peer, server.url, kind)
    handed = []
    try:
        for number in range(HANDED + 2):
            holder, waiter = (first, second) if number % 2 else (second, first)
            holder.send("acquire")
            holder.receive(15)
            waiter.send("acquire")
            time.sleep(random.uniform(*HOLDING))
            holder.send("release")
            released, acquired = holder.receive(15), waiter.receive(15)
            if acquired < released:
                raise ChildFailed("one was given a lock that the other still held")
            if number >= 2:  # the first two connect and load scripts
                handed.append((acquired - released) * 1000)
            waiter.send("release")
            waiter.receive(15)
    finally:
        first.join()
        second.join()
    return handed


def _peer(parent: Parent, url: str, kind: type[Lock]) -> None:
    """Obey until the parent hangs up: say when an acquire returned, and when a release was called."""
    lock = kind(url, "handed")
    while True:
        try:
            order = parent.receive()
        except EOFError:
            return
        if order == "acquire":
            lock.acquire()
            parent.send(time.monotonic())
        else:
            called = time.monotonic()
            lock.release()
            parent.send(called)


def _compete(server: Server, kind: type[Lock]) -> tuple[float, float, int]:
    """Round trips of an acquisition, unevenness, and updates lost."""
    shared = context.RawArray("q", PROCESSES + 2)  # turns of each, then: counter, stop
    workers = [start(_worker, server.url, kind, shared, index) for index in range(PROCESSES)]
    try:
        for worker in workers:
            worker.receive(20)
        for worker in workers:
            worker.send("go")
        time.sleep(0.3)
        trips, before = server.trips(), shared[:PROCESSES]
        time.sleep(WINDOW)
        trips, after = server.trips() - trips, shared[:PROCESSES]
        shared[PROCESSES + 1] = 1
        for worker in workers:
            worker.receive(20)
    finally:
        shared[PROCESSES + 1] = 1
        for worker in workers:
            worker.join()
    turns = [late - early for early, late in zip(before, after, strict=True)]
    lost = sum(shared[:PROCESSES]) - shared[PROCESSES]
    return trips / max(1, sum(turns)), max(turns) / max(1, min(turns)), lost


def _worker(parent: Parent, url: str, kind: type[Lock], shared: Any, index: int) -> None:
    lock = kind(url, "competed")
    lock.acquire()
    lock.release()
    parent.send("ready")
    parent.receive()
    while not shared[PROCESSES + 1]:
        lock.acquire()
        value = shared[PROCESSES]
        os.sched_yield()
        shared[PROCESSES] = value + 1
        shared[index] += 1
        lock.release()
        time.sleep(THINKING)
    parent.send("done")
