"""What does a limit let through, and at what traffic?

A hundred calls a second, judged where the calls are made. First eight processes call as often as they may. Then two
hundred threads of four processes arrive within 0.8 s, at fifty a second.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, NamedTuple

from benchmarks.children import ChildFailed, start
from benchmarks.limit_kinds import Limited, Ours, limit_kinds
from benchmarks.report import Table, chosen, spread
from benchmarks.server import Server

__all__ = ["measure"]

LIMIT = 100
WINDOW = 1.0  # seconds
SECONDS = 3.0  # of steady calls
WAITERS = 50  # threads of each of the four processes

clock = time.monotonic  # one clock for all processes of a machine


class Round(NamedTuple):
    """What one round showed, in units of the limit."""

    worst: float
    used: float
    trips: float
    """Round trips of a grant, while many wait."""
    rank: float
    """Spearman's correlation of arrival and call."""


def measure(server: Server, *, rounds: int, only: Sequence[str] = ()) -> Table:
    """Measure each limiter in random order."""
    table = Table(
        f"A limit of {LIMIT} calls in {WINDOW:g} s", "limiter", "most in any window, of the limit",
        "calls made, of those allowed", "round trips of a call, 200 waiting", "order of calls and arrivals",
        "(bytes of 100 calls, of 1,000)",
    )  # fmt: skip
    kinds, found = chosen(limit_kinds(), only), defaultdict[str, list[Round]](list)
    for number in range(rounds):
        for kind in random.sample(kinds, len(kinds)):
            table.progress(f"limits, round {number + 1} of {rounds}: {kind.label}")
            server.client.flushall()
            with table.failures(kind.label):
                found[kind.label].append(_round(server, kind))
    for kind in kinds:
        if not (some := found[kind.label]):
            continue
        worst, used, trips, rank = zip(*some, strict=True)
        sizes = ", ".join(f"{memory(server, kind, limit):,}" for limit in (100, 1000))
        table.add(kind.label, spread(worst), spread(used), spread(trips, 1), f"{median(rank):.2f}", sizes)
        if kind is Ours and max(worst) > 1:
            table.fail(kind.label, f"{max(worst):.2f} of the limit were let through in a window")
    figures = {label: [one.worst for one in some] for label, some in found.items()}
    table.plot("limits-worst", "The most calls in any window, of the limit (1: exact; more is over it)", figures)
    figures = {label: [one.used for one in some] for label, some in found.items()}
    table.plot("limits-used", "Calls made of those allowed, eight processes as often as they may", figures)
    return table


def _round(server: Server, kind: type[Limited]) -> Round:
    calls = sorted(_together(caller, 8, kind, (server.url, "steady", LIMIT, WINDOW)))
    trips: list[int] = []
    arguments = (server.url, "waiters", LIMIT // 2, WINDOW)
    made = _together(waiters, 4, kind, arguments, between=lambda: trips.append(server.trips()))
    crowd = most_within(sorted(called for _, called in made), WINDOW) / (LIMIT // 2)
    return Round(
        max(most_within(calls, WINDOW) / LIMIT, crowd),
        len(calls) / (LIMIT * SECONDS / WINDOW),
        (trips[1] - trips[0]) / len(made),
        correlation(made),
    )


def _together(
    work: Callable[..., None], processes: int, *arguments: Any, between: Callable[[], object] = lambda: None
) -> list[Any]:
    """What so many processes report that begin at once. ``between`` is done when all are ready, and again when all have
    reported and are still connected."""
    children = [start(work, *arguments) for _ in range(processes)]
    try:
        for child in children:
            child.receive(20)
        between()
        for child in children:
            child.send("begin")
        found = [one for child in children for one in child.receive(90)]
        between()
        return found
    finally:
        for child in children:
            child.join()


def caller(parent: Any, kind: type[Limited], arguments: tuple[Any, ...]) -> None:
    """One process that calls as often as it may."""
    limiter, made = kind(*arguments), list[float]()
    kind(arguments[0], "warm", 1_000, 1).acquire()
    parent.send("ready")
    parent.receive()
    ends = clock() + SECONDS

    def call() -> None:
        while clock() < ends:
            limiter.acquire()
            made.append(clock())

    thread = threading.Thread(target=call, daemon=True)  # it may wait longer
    thread.start()
    thread.join(SECONDS + 0.2)
    parent.send([at for at in made if at < ends])
    _hang_on(parent)


def waiters(parent: Any, kind: type[Limited], arguments: tuple[Any, ...]) -> None:
    """One process with threads that wait for one call each: when it arrived, and when it was made."""
    limiter, made = kind(*arguments), list[tuple[float, float]]()
    warm, begin, ready = kind(arguments[0], "warm", 10_000, 1), threading.Event(), threading.Barrier(WAITERS + 1)

    def wait(after: float) -> None:
        ready.wait()
        warm.acquire()  # many at once, for as many connections as will be needed
        ready.wait()
        begin.wait()
        time.sleep(after)
        arrived = clock()
        limiter.acquire()
        made.append((arrived, clock()))

    threads = [threading.Thread(target=wait, args=(random.uniform(0, 0.8),), daemon=True) for _ in range(WAITERS)]
    for thread in threads:
        thread.start()
    ready.wait()
    ready.wait()
    parent.send("ready")
    parent.receive()
    begin.set()
    for thread in threads:
        thread.join(60)
    if len(made) < WAITERS:
        raise ChildFailed(f"only {len(made)} of {WAITERS} callers were served")
    parent.send(made)
    _hang_on(parent)


def _hang_on(parent: Any) -> None:
    """Stay connected until the parent hangs up: who leaves would be a read, too."""
    try:
        parent.receive()
    except EOFError:
        return


def most_within(calls: Sequence[float], window: float) -> int:
    """Return the most calls in any half-open window."""
    most = first = 0
    for index, at in enumerate(calls):
        while calls[first] <= at - window:
            first += 1
        most = max(most, index - first + 1)
    return most


def correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Return Spearman's correlation."""
    first, second = ({value: rank for rank, value in enumerate(sorted(side))} for side in zip(*pairs, strict=True))
    squares = sum((first[one] - second[two]) ** 2 for one, two in pairs)
    return 1 - 6 * squares / (len(pairs) * (len(pairs) ** 2 - 1))


def memory(server: Server, kind: type[Limited], limit: int) -> int:
    """Return the bytes of all keys of a limiter whose window is full."""
    server.client.flushall()
    limiter = kind(server.url, "full", limit, 60.0)
    for _ in range(limit):
        limiter.acquire()
    return sum(int(server.client.memory_usage(key, samples=0) or 0) for key in server.client.scan_iter())
