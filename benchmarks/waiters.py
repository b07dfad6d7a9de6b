"""Who waits, on each kind of store: in which order they come, what they ask, and how soon they are woken.

All of it in one process, a thread for each who waits; the kinds by turns in random order, so that each is compared with
one Redis in the same round. All servers are on this machine: what is shown is work, not network.
"""

from __future__ import annotations

import random
import secrets
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

import redis

from benchmarks.report import Table, spread
from benchmarks.server import Server, find_server, running_cluster, running_server
from django_tasklock.backends.contract.locks import LockStore
from django_tasklock.backends.redis import RedisBackend
from django_tasklock.conf import Settings
from django_tasklock.locks.acquire import acquire_within
from django_tasklock.types import AcquireRequest, Grant

WAITERS = 8
LEASE = 1000
"""Milliseconds of the lease of who dies."""
ONE = "one Redis"


@dataclass
class Kind:
    """A store, its servers, and what was measured there, a figure for each round."""

    store: LockStore
    servers: Sequence[Server]
    asked: list[float] = field(default_factory=list)
    """Scripts that the busiest server ran for each who waited, its release left out."""
    woken: list[float] = field(default_factory=list)
    """Milliseconds from the call of a release to the return of the next one's acquire, the median."""
    outlived: list[float] = field(default_factory=list)
    """From the acquisition of who died to that of who waited, in leases."""
    late: int = 0
    """Those whom somebody has overtaken who came later."""
    waited: int = 0


def measure(*, rounds: int) -> Table:
    """Run each by turns."""
    table = Table(
        f"Waiters: {WAITERS} behind one lock; one behind a holder that dies",
        [
            "",
            "overtaken",
            "scripts for each acquisition, busiest server",
            "woken after a release, times one Redis",
            "ms",
            "after a death, in leases",
        ],
    )
    with ExitStack() as stack:
        kinds = _kinds(stack)
        for kind in kinds.values():
            _line(kind)
            kind.asked, kind.woken, kind.late, kind.waited = [], [], 0, 0
        for number in range(rounds):
            table.progress(f"waiters: round {number + 1} of {rounds}")
            for label in random.sample(list(kinds), len(kinds)):
                _line(kinds[label])
                _death(kinds[label])
    for label, kind in kinds.items():
        ratios = [woken / one for woken, one in zip(kind.woken, kinds[ONE].woken, strict=True)]
        table.add(
            label,
            f"{kind.late} of {kind.waited}",
            spread(kind.asked),
            spread(ratios),
            f"[{spread(kind.woken)}]",
            spread(kind.outlived),
        )
        table.data[label] = {"asked": kind.asked, "ms": kind.woken, "of_one": ratios, "leases": kind.outlived}
    return table


def _kinds(stack: ExitStack) -> dict[str, Kind]:
    one = stack.enter_context(running_server())
    nodes = stack.enter_context(running_cluster())
    cluster = "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)
    sentinel, primary = stack.enter_context(_running_sentinel())
    found = {
        ONE: Kind(RedisBackend(Settings(LOCATION=one.url)), [one]),
        "Sentinel": Kind(RedisBackend(Settings(LOCATION=sentinel)), [primary]),
        "Cluster of three": Kind(RedisBackend(Settings(LOCATION=cluster)), nodes),
    }
    for kind in found.values():
        stack.callback(kind.store.close)
    return found


@contextmanager
def _running_sentinel() -> Iterator[tuple[str, Server]]:
    """Start a primary, its replica and a Sentinel; the URL of the service, and the primary."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tasklock-bench-")))
        primary = stack.enter_context(running_server())
        stack.enter_context(running_server("--replicaof", "127.0.0.1", str(primary.port)))
        with running_server() as taken:
            port = taken.port
        config = folder / "sentinel.conf"
        config.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {folder}\nsentinel monitor locks 127.0.0.1 {primary.port} 1\n"
        )
        process = subprocess.Popen([find_server(), str(config), "--sentinel"], stdout=subprocess.DEVNULL)
        stack.callback(process.wait)
        stack.callback(process.terminate)
        with redis.Redis(port=port) as client:
            _until(lambda: _answers(client))
        yield f"redis+sentinel://127.0.0.1:{port}/locks/0", primary


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


def _until(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + 30
    while not condition():
        if time.monotonic() > ends:
            raise SystemExit("waiters: what was waited for does not come")
        time.sleep(0.005)


def _ask(name: str, lease: int = 60_000) -> AcquireRequest:
    return AcquireRequest(name, secrets.token_hex(16), lease, 3_600_000)


def _line(kind: Kind) -> None:
    """Let some come one after the other, and each hold the lock for no time."""
    store, name = kind.store, f"line:{secrets.token_hex(4)}"
    told: list[tuple[int, float, float]] = []

    def wait(place: int) -> None:
        request = _ask(name)
        _, answer = acquire_within(store, request, 60)
        granted = time.monotonic()
        assert isinstance(answer, Grant)
        told.append((place, granted, time.monotonic()))
        store.release(name, request.token)

    before = _scripts(kind)
    holder = _ask(name)
    assert isinstance(store.acquire(holder), Grant)
    threads = [threading.Thread(target=wait, args=(place,)) for place in range(WAITERS)]
    looks = 0
    for place, thread in enumerate(threads):
        thread.start()
        while looks < 10_000:
            looks += 1
            if store.waiters(name).total > place:
                break
            time.sleep(0.005)
    time.sleep(0.05)  # whoever has a place listens by now
    released = time.monotonic()
    store.release(name, holder.token)
    for thread in threads:
        thread.join()
    asked = max(now - then for now, then in zip(_scripts(kind), before, strict=True))
    kind.asked.append((asked - looks - 1 - (WAITERS + 1)) / WAITERS)  # without the holder, and without releases
    rows = [(-1, released, released), *told]
    kind.woken.append(median(after[1] - one[2] for one, after in pairwise(rows)) * 1000)
    places = [place for place, _, _ in told]
    kind.late += sum(any(other > place for other in places[:rank]) for rank, place in enumerate(places))
    kind.waited += WAITERS


def _death(kind: Kind) -> None:
    """Let one wait for a lock that nobody renews."""
    name = f"death:{secrets.token_hex(4)}"
    began = time.monotonic()
    assert isinstance(kind.store.acquire(_ask(name, LEASE)), Grant)
    time.sleep(random.uniform(0, LEASE / 2000))
    request = _ask(name)
    _, answer = acquire_within(kind.store, request, 60)
    kind.outlived.append((time.monotonic() - began) * 1000 / LEASE)
    assert isinstance(answer, Grant)
    kind.store.release(name, request.token)


def _scripts(kind: Kind) -> list[int]:
    """How many scripts each server has run."""
    found = []
    for server in kind.servers:
        with redis.Redis(port=server.port) as client:
            stats = client.info("commandstats")
        found.append(sum(stats.get(f"cmdstat_{verb}", {}).get("calls", 0) for verb in ("eval", "evalsha")))
    return found
