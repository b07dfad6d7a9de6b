"""What does a page of locks cost, with ten thousand of them?"""

from __future__ import annotations

import os
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import median

from benchmarks.report import Table, spread
from benchmarks.server import Server

__all__ = ["measure"]

LOCKS = 10_000
ROWS = 100


def measure(server: Server, *, rounds: int, only: Sequence[str] = ()) -> Table:
    """Hold the locks, and read them in each way, in random order."""
    from django_tasklock import get_lock_info, list_all_task_locks
    from django_tasklock.backends import get_backend
    from django_tasklock.backends.contract.lists import Query
    from django_tasklock.operations import list_locks

    table = Table(f"Pages, {LOCKS:,} locks held", "what", "of one lock's", "(ms)")
    server.client.flushall()
    empty = server.client.info("memory")["used_memory"]
    hold()
    each = (server.client.info("memory")["used_memory"] - empty) / LOCKS
    read: dict[str, Callable[[], object]] = {
        "one lock": lambda: get_lock_info("video:1"),
        "the counts of the overview": lambda: get_backend().counts(),
        f"{ROWS} by expiry": lambda: list_locks(Query(limit=ROWS)),
        f"the last {ROWS} by expiry": lambda: list_locks(Query(limit=ROWS, offset=LOCKS - ROWS)),
        f"the {ROWS} oldest": lambda: list_locks(Query(order="age", descending=True, limit=ROWS)),
        "those with a text that few have": lambda: list_locks(Query(text="video:999", limit=ROWS)),
        "all of them": list_all_task_locks,
    }
    taken = defaultdict[str, list[float]](list)
    for number in range(rounds + 1):  # the first one warms up
        for label in random.sample(list(read), len(read)):
            table.progress(f"pages, round {number} of {rounds}: {label}")
            times = []
            for _ in range(5):
                began = time.perf_counter()
                read[label]()
                times.append(time.perf_counter() - began)
            if number:
                taken[label].append(median(times))
    for label in read:
        ratios = [one / unit for one, unit in zip(taken[label], taken["one lock"], strict=True)]
        table.add(label, spread(ratios, 1), spread([seconds * 1000 for seconds in taken[label]], 1))
    table.add(f"(each takes {each:,.0f} bytes of the server's memory)", "", "")
    return table


def hold() -> None:
    """Locks in a random order of expiry, as Celery tasks hold them."""
    from django_tasklock.backends import get_backend
    from django_tasklock.types import AcquireRequest

    backend = get_backend()
    for number in range(LOCKS):
        holder = f'{{"host":"web{number % 9}","pid":{number},"boot":"{"b" * 32}","task":"videos.tasks.process"}}'
        lease, timeout = random.randint(3_600_000, 7_200_000), random.randint(7_200_000, 9_000_000)
        backend.acquire(AcquireRequest(f"video:{number}", os.urandom(16).hex(), lease, timeout, holder))
