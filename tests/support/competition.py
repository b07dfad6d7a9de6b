"""Eight processes that want the same locks, and a judge of what they were given.

``race``: one lock a round, all ask at once, one may get it. ``take_turns``: one lock for
all, whoever has it writes to a log when it enters and when it leaves. The judges are pure
functions of what was written down, so that they can be shown a history that is wrong.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["PROCESSES", "Asked", "Processes", "contested", "judge_log", "judge_rounds"]

PROCESSES = 8
STRIDE = 10  # rounds between two meetings of all processes: more often is slower, more rarely is no race
LONGEST = 600  # seconds until a run counts as stuck


class Asked(NamedTuple):
    """One request: in which round, by which process, from when to when, and the fence if it was granted."""

    round: int
    process: int
    fence: int | None
    began: float = 0.0
    ended: float = 0.0


def judge_rounds(asked: Iterable[Asked], rounds: int, dead: dict[int, int] | None = None) -> list[str]:
    """What is wrong. ``dead``: the fence of the dead holder before each round, if there was one."""
    granted: dict[int, list[Asked]] = defaultdict(list)
    for one in asked:
        if one.fence is not None:
            granted[one.round].append(one)
    wrong = []
    for number in range(rounds):
        given = granted.pop(number, [])
        if len(given) != 1:
            wrong.append(f"round {number}: {len(given)} grants, to {[one.process for one in given]}")
        wrong += [
            f"round {number}: fence {one.fence} is not above {dead[number]}"
            for one in given
            if dead is not None and one.fence is not None and one.fence <= dead[number]
        ]
    wrong += [f"round {number}: there is no such round" for number in granted]
    return wrong


def contested(asked: Iterable[Asked]) -> int:
    """In how many rounds somebody else was asking at the very time at which the winner was."""
    rounds: dict[int, list[Asked]] = defaultdict(list)
    for one in asked:
        rounds[one.round].append(one)
    return sum(
        any(
            won.began < other.ended and other.began < won.ended
            for won in all_of_it
            if won.fence is not None
            for other in all_of_it
            if other is not won
        )
        for all_of_it in rounds.values()
    )


def judge_log(lines: Iterable[str]) -> list[str]:
    """What is wrong with a log of ``enters <process> <fence>`` and ``leaves <process> <fence>``."""
    wrong, inside, last = [], None, 0
    for number, line in enumerate(lines):
        what, process, text = line.split()
        fence = int(text)
        if what == "enters":
            if inside is not None:
                wrong.append(f"line {number}: {process} enters while {inside[0]} is inside")
            if fence <= last:
                wrong.append(f"line {number}: fence {fence} after {last}")
            inside, last = (process, fence), max(last, fence)
        elif inside != (process, fence):
            wrong.append(f"line {number}: {process} leaves while {inside} is inside")
        else:
            inside = None
    if inside is not None:
        wrong.append(f"{inside[0]} never left")
    return wrong


class Processes:
    """Eight fresh interpreters. They are started once and serve several runs."""

    def __enter__(self) -> Processes:
        context = multiprocessing.get_context("spawn")
        barrier = context.Barrier(PROCESSES, timeout=LONGEST)
        self._pool = ProcessPoolExecutor(PROCESSES, context, initializer=_start, initargs=(barrier,))
        return self

    def __exit__(self, *details: object) -> None:
        self._pool.shutdown()

    def race(self, store: str, rounds: int, *, after_a_death: bool = False) -> tuple[list[Asked], dict[int, int]]:
        """All ask for one lock after the other: who got which, and the fences of dead holders if there were any."""
        parts = self._run(_race, store, os.urandom(4).hex(), rounds, after_a_death)
        asked = [one for part, _ in parts for one in part]
        return asked, {number: fence for _, part in parts for number, fence in part.items()}

    def take_turns(self, store: str, turns: int, log: Path) -> list[str]:
        """Each takes one and the same lock ``turns`` times: the log they wrote while they had it."""
        self._run(_take_turns, store, os.urandom(4).hex(), turns, log)
        return log.read_text().splitlines()

    def _run(self, work: Any, *arguments: object) -> list[Any]:
        # A process that has begun waits for the others at the barrier, so that none gets two parts.
        futures = [self._pool.submit(_guarded, work, process, *arguments) for process in range(PROCESSES)]
        return [future.result(LONGEST) for future in futures]


_together: Barrier


def _start(barrier: Barrier) -> None:
    global _together
    _together = barrier
    import django

    django.setup()


def _guarded(work: Any, *arguments: object) -> Any:
    from django.db import connections

    try:
        _together.wait()
        return work(*arguments)
    except BaseException:
        _together.abort()  # the others would wait for this one
        raise
    finally:
        connections.close_all()


def _race(process: int, store: str, run: str, rounds: int, after_a_death: bool) -> tuple[list[Asked], dict[int, int]]:
    from django_tasklock.types import Grant
    from tests.support.stores import an_ask, eventually, granted, make

    backend = make(store)
    names = [f"{run}:{number}" for number in range(rounds)]
    dead = {}
    if after_a_death:
        mine = range(process, rounds, PROCESSES)
        dead = {number: granted(backend.acquire(an_ask(names[number], ttl=1))).fence for number in mine}
        eventually(lambda: backend.get(names[mine[-1]]) is None)
    asked = []
    for number, name in enumerate(names):
        if number % STRIDE == 0:
            _together.wait()
        ask = an_ask(name)
        began = time.monotonic()
        answer = backend.acquire(ask)
        fence = answer.fence if isinstance(answer, Grant) else None
        asked.append(Asked(number, process, fence, began, time.monotonic()))
    backend.close()
    return asked, dead


def _take_turns(process: int, store: str, run: str, turns: int, log: Path) -> None:
    from django_tasklock.types import Busy, Released
    from tests.support.stores import an_ask, make

    backend = make(store)
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for _ in range(turns):
        ask = an_ask(f"turns:{run}")
        ends = time.monotonic() + LONGEST
        with backend.waiter(ask) as waiter:
            while isinstance(answer := waiter.acquire(), Busy):
                assert time.monotonic() < ends, "no turn"
                waiter.wait(0.2 if backend.wakes else random.uniform(0.001, 0.02))
        os.write(file, f"enters {process} {answer.fence}\n".encode())
        os.write(file, f"leaves {process} {answer.fence}\n".encode())
        assert backend.release(ask.name, ask.token) is Released.RELEASED
    os.close(file)
    backend.close()
