"""Processes that call under a rate limit and note when, on a clock that all of them share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from django.db import connections

from tests.support.workers import Crew, Worker

__all__ = ["at_once", "callers", "most_within", "times"]

CALLER = """
from django_tasklock import RateLimiter, RateLimitExceeded, BackendUnavailable
import random
clock = lambda: time.clock_gettime(time.CLOCK_MONOTONIC)

def call(name, rates, number, cost=1, pause=0.0, cancelled=0.0, **options):
    "So many calls, one after the other: when each was made, and its units. Some reservations are cancelled in between."
    limiter, made = RateLimiter(name, *rates, **options), []
    for turn in range(number):
        while random.random() < cancelled:
            limiter.reserve(cost=cost).cancel()
        limiter.acquire(cost=cost)
        made.append((clock(), cost))
        if pause:
            time.sleep(random.uniform(0, pause))
    return made

def call_both(name, requests, tokens, number, seed, **options):
    "Calls that two limits count: when each was made, and its tokens. Some are settled for less."
    chance, made = random.Random(seed), []
    both = RateLimiter(name, requests, **options).together_with(RateLimiter(name + ":tokens", tokens, **options))
    for turn in range(number):
        cost = chance.choice([1, 2, 7, 12])
        reservation = both.acquire(cost={name + ":tokens": cost})
        made.append((clock(), cost))
        if chance.random() < 0.3:
            reservation.settle({name + ":tokens": cost})
    return made

def wait(name, rates, number, **options):
    "So many threads, each of which waits for one call: arrival and turn by the server's clock, call, questions."
    from django_tasklock.rates.reservation import Reservation
    limiter, made = RateLimiter(name, *rates, **options), []
    class Counted(Reservation):
        asked = 1
        def _confirm(self):
            self.asked += 1
            super()._confirm()
    def one(turn):
        reservation = limiter.reserve()
        reservation.__class__ = Counted
        booked = reservation.slot.booked
        reservation.use()
        made.append((booked.time - booked.wait, booked.time, clock(), reservation.asked))
    threads = [threading.Thread(target=one, args=(turn,)) for turn in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return made
"""


def at_once(work: Callable[..., object], *each: tuple[Any, ...]) -> list[threading.Thread]:
    """Threads that have begun ``work(*one)``, for each; they leave no database connection behind."""

    def run(one: tuple[Any, ...]) -> None:
        try:
            work(*one)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=(one,)) for one in each]
    for thread in threads:
        thread.start()
    return threads


def callers(crew: Crew, number: int) -> list[Worker]:
    """So many processes that know ``call`` and ``wait``."""
    return crew.hire_many(number, CALLER)


def times(workers: list[Worker], code: str) -> list[tuple[float, int]]:
    """What all of them did when told ``code`` at once: (time, units), in order."""
    for worker in workers:
        worker.start(code)
    return sorted(tuple(one) for worker in workers for one in worker.done(60))


def most_within(calls: list[tuple[float, int]], window: float) -> int:
    """The most units in any half-open window of that length; ``calls``: (time, units)."""
    calls = sorted(calls)
    most = total = start = 0
    for time, units in calls:
        total += units
        while calls[start][0] <= time - window:
            total -= calls[start][1]
            start += 1
        most = max(most, total)
    return most
