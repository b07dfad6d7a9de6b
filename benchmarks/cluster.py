"""A Redis Cluster of three against one instance: free pairs (acquire, release) of many processes.

Wall time shows what one machine does with four servers and the processes that ask them. What a cluster is for shows in
the processor time of its servers, where each has a processor of its own: what a pair costs a node that is as busy as
the one instance, times the share of the pairs that the busiest node has.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median

import redis

from benchmarks.children import Parent, start
from benchmarks.report import Table, spread
from benchmarks.server import Server, running_server
from django_tasklock.backends.cluster import ClusterBackend
from django_tasklock.backends.cluster.buckets import number_of
from django_tasklock.backends.contract.locks import LockStore
from django_tasklock.backends.redis import RedisBackend
from django_tasklock.conf import Settings
from django_tasklock.types import AcquireRequest

NODES = 3
SLOTS = 16384
PROCESSES = 6
ONE, ALL, BUSY = "one instance", "cluster", "cluster, one node of it"


@contextmanager
def running_cluster() -> Iterator[list[Server]]:
    """Start three primaries, the slots shared out among them."""
    with ExitStack() as stack:
        options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "5000")
        servers = [stack.enter_context(running_server(*options, highest=55_000)) for _ in range(NODES)]
        clients = [stack.enter_context(redis.Redis(port=server.port)) for server in servers]
        for number, client in enumerate(clients):
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            share = range(number * SLOTS // NODES, (number + 1) * SLOTS // NODES)
            client.execute_command("CLUSTER", "ADDSLOTS", *share)
            if number:
                clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", servers[number].port)
        ends = time.monotonic() + 30
        while not all(b"cluster_slots_ok:16384" in client.execute_command("CLUSTER", "INFO") for client in clients):
            if time.monotonic() > ends:
                raise SystemExit("the nodes do not find each other")
            time.sleep(0.05)
        yield servers


def measure(single: Server, *, rounds: int, seconds: float) -> Table:
    """Run both by turns, in random order."""
    table = Table(
        f"Cluster of {NODES} against one instance: free pairs of {PROCESSES} processes",
        ["", "pairs/s in all", "µs of the busiest server for each of all pairs", "its share"],
    )
    with running_cluster() as nodes:
        url = "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)
        stores = {
            ONE: (f"redis://127.0.0.1:{single.port}/0", [single], SLOTS),
            ALL: (url, nodes, SLOTS),
            BUSY: (url, nodes, SLOTS // NODES),
        }
        speeds: dict[str, list[float]] = {label: [] for label in stores}
        costs: dict[str, list[float]] = {label: [] for label in stores}
        shares: dict[str, list[float]] = {label: [] for label in stores}
        for number in range(rounds):
            table.progress(f"cluster: round {number + 1} of {rounds}")
            for label in random.sample(sorted(stores), len(stores)):
                url, servers, slots = stores[label]
                with table.failures(label):
                    pairs, spent = _round(url, servers, slots, seconds)
                    speeds[label].append(pairs / seconds)
                    costs[label].append(max(spent) / pairs * 1e6)
                    shares[label].append(max(spent) / sum(spent))
    for label in stores:
        table.add(label, f"[{spread(speeds[label], 0)}]", f"[{spread(costs[label])}]", spread(shares[label]))
        table.data[label] = {"pairs/s": speeds[label], "µs": costs[label], "share": shares[label]}
    if all(costs.values()):
        room = median(costs[ONE]) / (median(costs[BUSY]) * median(shares[ALL]))
        wall = median(speeds[ALL]) / median(speeds[ONE])
        processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        table.add("**ratio**", f"**{wall:.2f}** on {processors} processors", f"**{room:.2f}**", "")
        table.data["ratio"] = {"wall": wall, "server": room}
    return table


def _round(url: str, servers: list[Server], slots: int, seconds: float) -> tuple[int, list[float]]:
    children = [start(_pairs, url, slots, number) for number in range(PROCESSES)]
    try:
        for child in children:
            child.receive(30)
        before = [server.cpu_time() for server in servers]
        for child in children:
            child.send(seconds)
        pairs = sum(child.receive(seconds + 30) for child in children)
        return pairs, [server.cpu_time() - one for server, one in zip(servers, before, strict=True)]
    finally:
        for child in children:
            child.join()


def _pairs(parent: Parent, url: str, slots: int, number: int) -> None:
    kind = ClusterBackend if "cluster" in url else RedisBackend
    store: LockStore = kind(Settings(LOCATION=url))
    asks = [
        AcquireRequest(name, os.urandom(16).hex(), 60_000, 3_600_000, kind="video:{id}")
        for which in range(1500)
        if number_of(name := f"video:{number}:{which}", SLOTS) < slots
    ]
    for ask in asks[:50]:
        store.acquire(ask)
        store.release(ask.name, ask.token)
    parent.send(True)
    ends = time.monotonic() + parent.receive()
    done = 0
    while time.monotonic() < ends:
        ask = asks[done % len(asks)]
        store.acquire(ask)
        store.release(ask.name, ask.token)
        done += 1
    parent.send(done)
