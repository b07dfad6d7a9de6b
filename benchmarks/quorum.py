"""A majority of three and of five instances against one, pottery's Redlock, and a loop of redis-py over the instances.

Free pairs (acquire, release) of one process, by turns in random order. All servers are on this machine: so what is
shown is the work, of client and servers; over a network a loop takes as many trips as there are instances, twice.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median

import redis

from benchmarks.report import Table, spread
from benchmarks.server import running_server
from django_tasklock.backends.contract.stores import LockStore
from django_tasklock.backends.quorum import QuorumBackend
from django_tasklock.backends.redis import RedisBackend
from django_tasklock.conf import Settings
from django_tasklock.types import AcquireRequest, Grant

ONE = "one instance"
Pair = Callable[[], object]
DELETE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


def measure(*, rounds: int, seconds: float) -> Table:
    """Run each by turns."""
    table = Table("A majority of instances: free pairs of one process", ["", "pairs/s", "times one instance"])
    with ExitStack() as stack:
        urls = [stack.enter_context(running_server()).url for _ in range(5)]
        pairs = _pairs(urls, stack)
        found: dict[str, list[float]] = {label: [] for label in pairs}
        for pair in pairs.values():
            _rate(pair, seconds / 5)
        for number in range(rounds):
            table.progress(f"majority: round {number + 1} of {rounds}")
            for label in random.sample(list(pairs), len(pairs)):
                found[label].append(_rate(pairs[label], seconds))
    for label, rates in found.items():
        ratios = [rate / one for rate, one in zip(rates, found[ONE], strict=True)]
        table.add(label, f"{median(rates):,.0f}", spread(ratios))
        table.data[label] = {"per_second": rates, "of_one": ratios}
    return table


def _rate(pair: Pair, seconds: float) -> float:
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        pair()
        done += 1
    return done / (time.perf_counter() - began)


def _pairs(urls: list[str], stack: ExitStack) -> dict[str, Pair]:
    pairs = {ONE: _ours(RedisBackend(Settings(LOCATION=urls[0])), 1, stack)}
    for number in (3, 5):
        some = urls[:number]
        clients = [stack.enter_context(redis.Redis.from_url(url)) for url in some]
        pairs[f"majority of {number}"] = _ours(QuorumBackend(Settings(LOCATION=some)), number, stack)
        pairs[f"loop of redis-py over {number}"] = _loop(clients)
        try:
            from pottery import Redlock
        except ImportError:
            continue
        pairs[f"pottery's Redlock on {number}"] = _pottery(Redlock, clients)
    return pairs


def _ours(backend: LockStore, number: int, stack: ExitStack) -> Pair:
    """Return a pair. A name of its own: a release is on its way to a minority for a moment longer."""
    stack.callback(backend.close)

    def pair() -> None:
        request = AcquireRequest(f"benchmark:{number}", secrets.token_hex(16), 60_000, 60_000)
        assert isinstance(backend.acquire(request), Grant)
        assert backend.release(request.name, request.token)

    return pair


def _loop(clients: list[redis.Redis]) -> Pair:
    scripts = [client.register_script(DELETE) for client in clients]

    def pair() -> None:
        token = secrets.token_hex(16)
        granted = sum(bool(client.set("loop", token, nx=True, px=60_000)) for client in clients)
        released = sum(script(keys=["loop"], args=[token]) for script in scripts)
        assert granted == released == len(clients)

    return pair


def _pottery(kind: type, clients: list[redis.Redis]) -> Pair:
    lock = kind(key="pottery", masters=set(clients), auto_release_time=60)

    def pair() -> None:
        assert lock.acquire()
        lock.release()

    return pair
