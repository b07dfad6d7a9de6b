"""What is done to the workers and to their servers: drawn from a seed, so that a bad day can be had again."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.process import BaseProcess

import redis
from django.db import connection

from tests.faults.locks import LEASE
from tests.support.proxy import Proxy
from tests.support.redis_server import RedisServer

__all__ = ["Harm"]

WORKERS = 4
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.faults.worker"])


class Harm:
    """Workers of one way, and everything that happens to them. Of the database: on a server, it drops connections."""

    def __init__(self, way: str, seed: int, server: RedisServer, proxy: Proxy) -> None:
        self.way = way
        self.random = random.Random(seed)
        self.server = server
        self.proxy = proxy
        self.done = Counter[str]()
        """How often each thing was done."""
        self._later: list[tuple[float, Callable[[], object]]] = []
        self._started = 0
        self.workers = [self._start() for _ in range(WORKERS)]
        self.acts = {
            self.kill: 4,
            self.pause: 4,
            self.cut: 2,
            self.slow: 2,
            self.step: 2,
            self.flush: 1,
            self.restart: 1,
        }
        """What may happen, and how often beside the others."""
        if connection.vendor == "postgresql":
            self.acts[self.drop] = 2

    def rage(self, seconds: float) -> None:
        """Do one thing after the other for so long."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            time.sleep(self.random.uniform(0.1, 0.5))
            [act] = self.random.choices([*self.acts], [*self.acts.values()])
            act()
            self.done[act.__name__] += 1
            self._do_what_is_due()

    def calm(self) -> None:
        """Put everything right, and wait for the workers, who have been told that it is over."""
        for _, act in self._later:
            act()
        self._later.clear()
        self.proxy.heal()
        ends = time.monotonic() + 20
        for worker in self.workers:
            worker.join(max(0.1, ends - time.monotonic()))
            worker.kill()
            worker.join()

    # What may happen

    def kill(self) -> None:
        """``kill -9`` of a worker; another one takes its place."""
        number = self.random.randrange(WORKERS)
        self.workers[number].kill()
        self.workers[number].join()
        self.workers[number] = self._start()

    def pause(self) -> None:
        """Stop a worker, mostly for longer than its lease."""
        worker = self.random.choice(self.workers)
        _signal(worker, signal.SIGSTOP)
        self._in(self.random.uniform(0.5, 2.5) * LEASE, lambda: _signal(worker, signal.SIGCONT))

    def flush(self) -> None:
        """Let Redis forget everything."""
        with redis.Redis.from_url(self.server.url) as client:
            client.flushall()

    def restart(self) -> None:
        """Kill Redis, and start an empty one a moment later."""
        self.server.kill()
        time.sleep(self.random.uniform(0, 0.5))
        self.server.start()

    def cut(self) -> None:
        """Close all connections to Redis."""
        self.proxy.cut()

    def slow(self) -> None:
        """Let Redis say nothing for a while."""
        self.proxy.hang()
        self._in(self.random.uniform(0.2, 1.0) * LEASE, self.proxy.heal)

    def step(self) -> None:
        """Set a worker's wall clock by an hour."""
        _signal(self.random.choice(self.workers), signal.SIGUSR1)

    def drop(self) -> None:
        """Let the database close all connections but this one."""
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )

    def _in(self, seconds: float, act: Callable[[], object]) -> None:
        self._later.append((time.monotonic() + seconds, act))

    def _do_what_is_due(self) -> None:
        now = time.monotonic()
        due = [act for when, act in self._later if when <= now]
        self._later = [one for one in self._later if one[0] > now]
        for act in due:
            act()

    def _start(self) -> BaseProcess:
        from tests.faults.worker import main

        self._started += 1
        worker = _context.Process(target=main, args=(self.way, f"{self.random.random()}-{self._started}"), daemon=True)
        worker.start()
        return worker


def _signal(worker: BaseProcess, number: signal.Signals) -> None:
    if worker.is_alive():
        assert worker.pid is not None
        os.kill(worker.pid, number)
