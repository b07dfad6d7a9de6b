"""What locks take of a Redis: its processor for each verb, in units of one plain ``SET``, and its memory.

``python -m benchmarks.capacity [--rounds N] [--json FILE]``. The processor time is that of the server's process, with
one client and no pipeline, so that reading and writing its socket are in it, for the ``SET`` as well.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from statistics import median

import redis

from benchmarks.project import configure
from benchmarks.report import Table, spread
from benchmarks.server import Server, running_server

TIMES = 4000
"""Calls of a verb in a round."""
LOCKS = 10_000
"""Locks that are held at once, for the memory of one."""


def main() -> int:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.capacity", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds in random order (default: 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's numbers there")
    options = parser.parse_args()
    with running_server() as server:
        configure(server.url)
        client = redis.Redis(port=server.port)
        verbs, held = verb_table(server, client, options.rounds), memory_table(client)
    print(f"{verbs}\n\n{held}")
    if options.json:
        options.json.write_text(json.dumps({table.title: table.data for table in (verbs, held)}, indent=1), "utf-8")
    return 0


def verb_table(server: Server, client: redis.Redis, rounds: int) -> Table:
    """Server time of each verb, in units of a ``SET``."""
    verbs = _verbs(client)
    taken: dict[str, list[float]] = {label: [] for label in verbs}
    for number in range(rounds):
        seconds: dict[str, float] = {}
        for label in random.sample([*verbs], len(verbs)):
            work, times = verbs[label]
            work()
            before = server.cpu_time()
            for _ in range(times):
                work()
            seconds[label] = (server.cpu_time() - before) / times
        for label, used in seconds.items():
            taken[label].append(used / seconds["SET"])
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
    table = Table("Server time of a verb", ["verb", "in units of a plain SET"])
    for label, ratios in sorted(taken.items(), key=lambda item: median(item[1])):
        table.add(label, spread(ratios, digits=1))
    table.data = {label: {"of_set": ratios} for label, ratios in taken.items()}
    return table


def _verbs(client: redis.Redis) -> dict[str, tuple[Callable[[], object], int]]:
    from django_tasklock import ConcurrencyLimiter, RateLimiter, TaskLock
    from django_tasklock.backends import get_backend
    from django_tasklock.types import Renewal

    lock, permits = TaskLock("capacity", kind="capacity"), ConcurrencyLimiter("capacity", 3)
    limiter = RateLimiter("capacity", "1000/s", max_wait=3600)

    def pair() -> None:
        lock.acquire(blocking=False)
        lock.release()

    def permit() -> None:
        permits.acquire(blocking=False)
        permits.release()

    held = [TaskLock(f"held:{number}") for number in range(100)]
    for one in held:
        one.acquire()
    batch = [Renewal(one.name, one.token or "", 60_000) for one in held]
    backend = get_backend()
    return {
        "SET": (lambda: client.set("capacity:set", "x" * 100, ex=60), TIMES),
        "a lock, taken and given back": (pair, TIMES),
        "a permit, taken and given back": (permit, TIMES),
        "a call at a rate limit": (limiter.reserve, TIMES),
        "a hundred renewals": (lambda: backend.renew(batch), TIMES // 20),
    }


def memory_table(client: redis.Redis) -> Table:
    """Bytes of what is held."""
    from django_tasklock import RateLimiter, TaskLock
    from django_tasklock.host import Task

    def used() -> int:
        return int(client.info("memory")["used_memory"])

    table = Table("Memory of the server", ["what", "bytes"])
    before = used()
    for number in range(LOCKS):
        TaskLock(f"video:{number}", kind="video:{id}", lease=600).acquire()
    table.data["a lock that is held"] = {"bytes": (used() - before) / LOCKS}
    before = used()
    for number in range(LOCKS):
        lock = TaskLock(f"task:{number}", kind="task:{id}", lease=600)
        lock.task = Task("videos.tasks.process_video", str(uuid.uuid4()), 0)
        lock.acquire()
    table.data["a lock that a Celery task holds"] = {"bytes": (used() - before) / LOCKS}
    before = used()
    limiter = RateLimiter("memory", "1000/h")
    for _ in range(1000):
        limiter.reserve()
    table.data["a limiter of 1000/h, all used"] = {"bytes": used() - before}
    for label, row in table.data.items():
        table.add(label, f"{row['bytes']:,.0f}")
    return table


if __name__ == "__main__":
    sys.exit(main())
