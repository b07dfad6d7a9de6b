"""A burst of coroutines, one lock each, all at once, beside redis-py's asyncio ``Lock``; then the same at a store that
hangs.

Each kind has a process of its own in each round. The first burst opens the connections, the later ones find them. The
*stall* is the longest time for which the event loop did not get its turn: what else the loop serves waits so long. At a
server that is stopped (``SIGSTOP``) each call must end with an error: its time-out.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any

from benchmarks.adapters import HOLD
from benchmarks.children import Parent, start
from benchmarks.report import Table, spread
from benchmarks.server import Control, Server

__all__ = ["measure"]

NUMBER = 1000
BURSTS = 5
GIVE_UP = 90.0  # seconds for a burst at a store that hangs
TICK = 0.001


def ours(url: str) -> Callable[[int], Awaitable[None]]:
    """``TaskLock`` with its defaults: a lease and a heartbeat."""
    from django_tasklock import TaskLock

    async def pair(number: int) -> None:
        async with TaskLock(f"burst:{number}"):
            pass

    return pair


def redis_py(url: str) -> Callable[[int], Awaitable[None]]:
    """redis-py's, one client for all. Its default pool has 100 connections and refuses more; this one waits for one."""
    redis: Any = importlib.import_module("redis.asyncio")
    client = redis.Redis.from_pool(redis.BlockingConnectionPool.from_url(url, max_connections=100, timeout=None))

    async def pair(number: int) -> None:
        async with client.lock(f"burst:{number}", timeout=HOLD):
            pass

    return pair


KINDS = {"TaskLock async": ours, "redis-py asyncio Lock": redis_py}


class Stall:
    """The longest time between two turns of a coroutine that wants one each millisecond. A context manager."""

    async def __aenter__(self) -> Stall:
        self.longest = 0.0
        self._task = asyncio.create_task(self._watch())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *details: object) -> None:
        self._task.cancel()

    async def _watch(self) -> None:
        before = time.perf_counter()
        while True:
            await asyncio.sleep(TICK)
            now = time.perf_counter()
            self.longest, before = max(self.longest, now - before - TICK), now


async def burst(pair: Callable[[int], Awaitable[None]]) -> tuple[float, float, int]:
    """Seconds, the longest stall, and how many failed."""
    async with Stall() as stall:
        began = time.perf_counter()
        calls = asyncio.gather(*(pair(number) for number in range(NUMBER)), return_exceptions=True)
        try:
            done = await asyncio.wait_for(calls, GIVE_UP)
        except TimeoutError:
            done = [TimeoutError()] * NUMBER
        seconds = time.perf_counter() - began
    return seconds, stall.longest, sum(isinstance(one, Exception) for one in done)


def _round(parent: Parent, server: Server, kind: str, hang: bool) -> None:
    control = Control(server.port)
    control.flush()

    async def all_of_it() -> dict[str, Any]:
        pair = KINDS[kind](server.url)
        first = await burst(pair)
        later = [await burst(pair) for _ in range(BURSTS)]
        clients = control.clients()
        found = {"first": first, "later": later, "connections": clients}
        if hang:
            os.kill(server.pid, signal.SIGSTOP)
            try:
                found["hang"] = await burst(pair)
            finally:
                os.kill(server.pid, signal.SIGCONT)
        return found

    parent.send(asyncio.run(all_of_it()))


def measure(server: Server, *, rounds: int) -> Table:
    """``rounds`` rounds in random order; the last one with a store that hangs."""
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    table = Table(
        f"A burst of {NUMBER:,} coroutines, one lock each",
        [
            "lock",
            "of redis-py's",
            "first burst",
            "(ms a burst)",
            "stall, ms",
            "connections",
            "failed",
            "hangs: s; stall, s",
        ],
    )
    for number in range(rounds):
        for kind in random.sample(list(KINDS), len(KINDS)):
            table.progress(f"burst, round {number + 1} of {rounds}: {kind}")
            child = start(_round, server, kind, number == rounds - 1)
            with table.failures(kind):
                found[kind].append(child.receive(GIVE_UP * 3))
            child.join()
    peers = found["redis-py asyncio Lock"]
    for kind, mine in found.items():
        if not mine or len(mine) != len(peers):
            continue
        later = [median(seconds for seconds, _, _ in one["later"]) for one in mine]
        unit = [median(seconds for seconds, _, _ in one["later"]) for one in peers]
        hang = mine[-1]["hang"]
        table.add(
            kind,
            spread([theirs / own for own, theirs in zip(later, unit, strict=True)]),
            spread([theirs["first"][0] / own["first"][0] for own, theirs in zip(mine, peers, strict=True)]),
            spread([seconds * 1000 for seconds in later], 0),
            spread([max(stall for _, stall, _ in one["later"]) * 1000 for one in mine], 0),
            spread([one["connections"] for one in mine], 0),
            str(sum(failed for one in mine for _, _, failed in [one["first"], *one["later"]])),
            f"{hang[0]:.1f}; {hang[1]:.2f} ({hang[2]} failed)",
        )
    table.data = {kind: {"rounds": mine} for kind, mine in found.items()}
    return table
