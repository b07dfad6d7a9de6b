"""``python -m benchmarks.rate_checks``: what one call that may go at once costs, beside the least that a script costs.

The floor is redis-py's ``EVALSHA`` of a script that does nothing. The plain reservation is a script of its own that
books one place in a list and tells its time: no several rates, no margin of lateness, no stops, no refunds. All take
turns in slices of one process on one CPU with the server, so that what else the machine does falls on all three.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from statistics import median
from typing import Any

import redis

from benchmarks.children import one_cpu, start
from benchmarks.project import configure
from benchmarks.report import Table, spread
from benchmarks.server import Control, Server, running_server

SLICE = 0.1  # seconds
COUNTED = 500  # calls over which the server's work is counted
KEYS = 64  # limiters that are called in turn
LIMIT, WINDOW = 1000, 60.0

PLAIN = """
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local limit, window, longest = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local slot = math.max(now, tonumber(redis.call('LINDEX', KEYS[1], 0) or 0))
local oldest = redis.call('LINDEX', KEYS[1], limit - 1)
if oldest then slot = math.max(slot, tonumber(oldest) + window) end
if slot - now > longest then return {0, slot - now} end
redis.call('LPUSH', KEYS[1], string.format('%.0f', slot))
redis.call('LTRIM', KEYS[1], 0, limit - 1)
redis.call('PEXPIRE', KEYS[1], math.ceil((slot - now + window) / 1000))
return {1, slot - now}
"""


class Floor:
    """``EVALSHA`` of nothing."""

    label = "floor: EVALSHA through redis-py"
    script = "return 1"

    def __init__(self, url: str) -> None:
        self.redis: Any = redis.Redis.from_url(url)
        self.sha = self.redis.script_load(self.script)
        self.number = 0

    def call(self) -> None:
        """Once."""
        self.number += 1
        self.redis.evalsha(self.sha, 1, f"floor:{self.number % KEYS}")


class Plain(Floor):
    """A reservation and nothing else."""

    label = "plain reservation"
    script = PLAIN

    def call(self) -> None:
        """Once."""
        self.number += 1
        key = f"plain:{self.number % KEYS}"
        self.redis.evalsha(self.sha, 1, key, LIMIT, int(WINDOW * 1e6), 3_600_000_000)


class Acquire:
    """``RateLimiter.acquire``."""

    label = "RateLimiter.acquire"

    def __init__(self, url: str) -> None:
        from django_tasklock import RateLimiter

        self.limiters = [RateLimiter(f"check:{number}", (LIMIT, WINDOW)) for number in range(KEYS)]
        self.number = 0

    def call(self) -> None:
        """Once."""
        self.number += 1
        self.limiters[self.number % KEYS].acquire()


class Decorated:
    """A function with ``rate_limited`` that does nothing."""

    label = "rate_limited function"

    def __init__(self, url: str) -> None:
        from django_tasklock import rate_limited

        def nothing() -> None:
            pass

        self.functions = [rate_limited(f"call:{number}", (LIMIT, WINDOW))(nothing) for number in range(KEYS)]
        self.number = 0

    def call(self) -> None:
        """Once."""
        self.number += 1
        self.functions[self.number % KEYS]()


KINDS = (Floor, Plain, Acquire, Decorated)


def measured(parent: Any, server: Server, seconds: float) -> None:
    """One round, in a process of its own."""
    os.sched_setaffinity(0, {one_cpu()})
    control = Control(server.port)
    control.flush()
    ours = [kind(server.url) for kind in KINDS]
    rates: dict[str, list[float]] = {one.label: [] for one in ours}
    commands = {}
    for one in ours:
        for _ in range(2 * KEYS):
            one.call()
        before = control.counters()[1]
        for _ in range(COUNTED):
            one.call()
        commands[one.label] = (control.counters()[1] - before) / COUNTED
    for turn in range(round(seconds / SLICE)):
        if turn % 20 == 19:
            control.flush()  # or the limits would be reached
        for one in random.sample(ours, len(ours)):
            began, made = time.perf_counter(), 0
            while time.perf_counter() - began < SLICE:
                one.call()
                made += 1
            rates[one.label].append(made / (time.perf_counter() - began))
    parent.send(({label: median(some) for label, some in rates.items()}, commands))


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rate_checks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each in a round")
    options = parser.parse_args()
    found: list[tuple[dict[str, float], dict[str, float]]] = []
    table = Table("A call that may go at once", ["", "of the floor", "server commands", "(calls/s)"])
    with running_server() as server:
        configure(server.url)
        server.pin({one_cpu()})
        for number in range(options.rounds):
            table.progress(f"round {number + 1}")
            child = start(measured, server, options.seconds)
            found.append(child.receive(options.seconds * 20 + 60))
            child.join()
    for kind in KINDS:
        shares = [rates[kind.label] / rates[Floor.label] for rates, _ in found]
        table.add(
            kind.label,
            spread(shares),
            f"{median(commands[kind.label] for _, commands in found):.2f}",
            f"{median(rates[kind.label] for rates, _ in found):.0f}",
        )
    print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
