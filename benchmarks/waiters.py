"""Who waits for a ``TaskLock``: in which order they come, what each asks, and how soon after a holder's death.

Twenty threads of four processes come one after the other, and each holds the lock for no time: an *inversion* is a pair
of which the later one was served first. Then a holder is killed with ``kill -9``, and the one who waits is served when
the lease has run out.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from itertools import combinations, pairwise
from statistics import median

import redis

from benchmarks.children import ChildFailed, Parent, start
from benchmarks.report import Table, spread
from benchmarks.server import Server

__all__ = ["measure"]

PROCESSES, WAITERS = 4, 20
LEASE = 2


def measure(server: Server, *, rounds: int) -> Table:
    """``rounds`` rounds of both."""
    table = Table(
        f"Waiters: {WAITERS} threads of {PROCESSES} processes; one behind a holder that dies",
        ["", "inversions", "scripts of each", "(ms from one to the next)", "seconds past the expiry after a death"],
    )
    inversions, scripts, woken, late = 0, [], [], []
    with redis.Redis(port=server.port) as client, table.failures("TaskLock"):
        for number in range(rounds):
            table.progress(f"waiters: round {number + 1} of {rounds}")
            found = line(client, f"line:{number}")
            inversions += found[0]
            scripts.append(found[1])
            woken.append(found[2] * 1000)
            late.append(after_death(client, f"death:{number}"))
    table.add("TaskLock", str(inversions), spread(scripts), spread(woken), spread(late, 3))
    table.data["TaskLock"] = {"inversions": inversions, "scripts": scripts, "ms": woken, "late": late}
    return table


def line(client: redis.Redis, name: str) -> tuple[int, float, float]:
    """Inversions, scripts that each of them ran, and the median seconds from one holder to the next."""
    from django_tasklock import TaskLock

    children = [start(_wait_in_line, name) for _ in range(PROCESSES)]
    holder = TaskLock(name)
    holder.acquire()
    before = _scripts(client)
    looks = 0
    for place in range(WAITERS):
        children[place % PROCESSES].send(place)
        looks += _until(lambda place=place: waiting(name) > place)  # type: ignore[misc]
    for child in children:
        child.send(None)
    time.sleep(0.1)  # whoever has a place listens by now
    holder.release()
    told = sorted((at, place, released) for child in children for at, place, released in child.receive(60))
    asked = (_scripts(client) - before - looks - 1 - WAITERS) / WAITERS  # without looks, and without releases
    for child in children:
        child.join()
    served = [place for _, place, _ in told]
    inversions = sum(first > second for first, second in combinations(served, 2))
    return inversions, asked, median(after[0] - one[2] for one, after in pairwise(told))


def _wait_in_line(parent: Parent, name: str) -> None:
    from django_tasklock import TaskLock

    told: list[tuple[float, int, float]] = []
    threads = []

    def wait(place: int) -> None:
        lock = TaskLock(name)
        if lock.acquire(blocking_timeout=60):
            at = time.monotonic()
            told.append((at, place, time.monotonic()))
            lock.release()

    while (place := parent.receive()) is not None:
        threads.append(threading.Thread(target=wait, args=(place,)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    parent.send(told)


def after_death(client: redis.Redis, name: str) -> float:
    """Seconds from the end of a dead holder's lease to the grant of the one who waits."""
    from django_tasklock import TaskLock

    child = start(_hold_and_die, name)
    child.receive(10)
    ends = time.monotonic() + int(client.pttl(f"task_lock:{name}")) / 1000
    with TaskLock(name, blocking_timeout=10 * LEASE):
        late = time.monotonic() - ends
    child.join()
    return late


def _hold_and_die(parent: Parent, name: str) -> None:
    from django_tasklock import TaskLock

    if not TaskLock(name, lease=LEASE).acquire():
        raise ChildFailed("a free lock was refused")
    parent.send("held")
    os.kill(os.getpid(), signal.SIGKILL)


def waiting(name: str) -> int:
    """How many wait."""
    from django_tasklock import get_lock_info

    info = get_lock_info(name)
    return 0 if info is None else info.waiting


def _until(condition: Callable[[], bool]) -> int:
    """How often that was asked."""
    ends, asked = time.monotonic() + 30, 1
    while not condition():
        if time.monotonic() > ends:
            raise ChildFailed("who should wait does not")
        asked += 1
        time.sleep(0.005)
    return asked


def _scripts(client: redis.Redis) -> int:
    """Scripts that the server has run."""
    stats = client.info("commandstats")
    return sum(int(stats.get(f"cmdstat_{verb}", {}).get("calls", 0)) for verb in ("eval", "evalsha", "evalsha_ro"))
