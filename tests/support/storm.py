"""Processes that take locks in every way there is while everything around them fails, and a judge of what they saw.

``rage`` runs in each process. What it saw goes to a log that all of them share, in the clock that all of them
share. The judge is a pure function of that log, so that it can be shown one that is wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import json
import logging
import os
import random
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["LEASE", "LIMIT", "NAMES", "Seen", "judge", "rage", "read"]

LEASE = 2
"""Seconds that a dead holder's lock lives on."""
NAMES = 4
"""How many locks, and how many rows, all of them want."""
LIMIT = 2
"""How many may have a permit at once."""
TIMEOUT = 600  # seconds: what is left behind and renewed stays to be seen

_EXPECTED = ("raised by a log handler", "struck by a time limit")


class Seen(NamedTuple):
    """One line: at ``at``, and until then from ``since``, the holder ``token`` of ``name`` certainly had it.

    ``kind``: ``lock``, ``permit``, ``wrote`` (the row ``name`` took a write of epoch ``token``), ``error`` (nobody
    expected what ``name`` says).
    """

    kind: str
    name: str
    token: str
    since: float
    at: float


def read(log: Path) -> list[Seen]:
    """Everything that was written down; a process that was killed may have left half a line."""
    found = []
    for line in log.read_text().splitlines():
        try:
            found.append(Seen(*json.loads(line)))
        except (ValueError, TypeError):
            continue
    return found


def judge(seen: Iterable[Seen]) -> list[str]:
    """What is wrong: two holders at once, more members than the limit, a write of an epoch that was over."""
    intact: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(dict)
    writes: dict[str, list[Seen]] = defaultdict(list)
    wrong = []
    for one in seen:
        if one.kind == "error":
            wrong.append(f"unexpected: {one.name}")
        elif one.kind == "wrote":
            writes[one.name].append(one)
        else:
            span = intact[one.kind, one.name].setdefault(one.token, [one.since, one.at])
            span[:] = min(span[0], one.since), max(span[1], one.at)
    for (kind, name), spans in intact.items():
        most = LIMIT if kind == "permit" else 1
        wrong += [f"{kind} {name}: {len(at_once)} at once: {at_once}" for at_once in _crowds(spans, most)]
    for row, written in writes.items():
        latest: Seen | None = None
        for one in sorted(written, key=lambda one: one.at):
            # Accepted before ``at``; it was stale if a later epoch had been seen before it was even sent.
            if latest is not None and int(one.token) < int(latest.token) and one.since > latest.at:
                wrong.append(f"row {row}: a write of epoch {one.token} after one of {latest.token}")
            if latest is None or int(one.token) > int(latest.token):
                latest = one
    return wrong


def _crowds(spans: dict[str, list[float]], most: int) -> Iterator[list[str]]:
    """Every set of more than ``most`` holders that were there at one time."""
    steps = [(since, 0, token) for token, (since, _) in spans.items()]
    steps += [(until, 1, token) for token, (_, until) in spans.items()]
    here: list[str] = []
    for _, leaves, token in sorted(steps):
        if leaves:
            here.remove(token)
            continue
        here.append(token)
        if len(here) > most:
            yield sorted(here)


def rage(log: str, tasklock: dict[str, Any], ends: str, rows: list[int]) -> None:
    """Take locks, permits and rows in every way, until there is a file ``ends``; then be still, and hold nothing."""
    from django.test.utils import override_settings

    from django_tasklock import TaskLockError

    override_settings(TASKLOCK={"LEASE": LEASE, "TIMEOUT": TIMEOUT, **tasklock}).enable()
    logging.getLogger("django_tasklock").addHandler(_Raises())
    logging.getLogger("django_tasklock").propagate = False
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    faulthandler.register(signal.SIGUSR1, file=Path(f"{log}-{os.getpid()}").open("w"))  # noqa: SIM115  # where it hangs

    def note(*seen: Any) -> None:
        os.write(file, f"{json.dumps(seen)}\n".encode())

    def play(scene: Callable[[], None]) -> None:
        from django.db import DatabaseError, connections

        try:
            scene()
        except (TaskLockError, DatabaseError):
            pass  # told, as promised
        except Exception as error:
            if not any(text in str(error) for text in _EXPECTED):  # Python itself wraps some
                note("error", f"{scene.__name__}: {error!r} of {error.__context__!r}", "", 0, 0)
        finally:
            with contextlib.suppress(DatabaseError):  # the server has closed it already
                connections.close_all()

    def play_on(scenes: list[Callable[[], None]]) -> None:
        while not ended():
            clock.step()
            play(random.choice(scenes))

    ended, clock = Path(ends).exists, _Clock()
    scenes = _Scenes(note, rows)
    ways = [scenes.exclusive, scenes.permitted, scenes.guarded, scenes.plain, scenes.coroutines]
    for scene in ways:  # an import that is struck leaves Python's own lock of it behind, for ever
        play(scene)
    threads = [threading.Thread(target=play_on, args=(ways,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    signal.signal(signal.SIGALRM, _strike)
    play_on([scenes.struck])  # only the main thread can be
    for thread in threads:
        thread.join()


class _Clock:
    """This process's wall clock, which somebody sets now and then."""

    def __init__(self) -> None:
        self.skew = 0
        true, true_ns = time.time, time.time_ns
        time.time = lambda: true() + self.skew
        time.time_ns = lambda: true_ns() + self.skew * 10**9

    def step(self) -> None:
        if random.random() < 0.05:
            self.skew = random.choice([-86_400, -5, 0, 5, 86_400])


class _Raises(logging.Handler):
    """One of twenty records is too much for it."""

    def createLock(self) -> None:
        """None: the standard library's own would be left behind by a time limit that strikes beside it."""
        self.lock = None

    def emit(self, record: logging.LogRecord) -> None:
        if random.random() < 0.05:
            raise RuntimeError(_EXPECTED[0])


def _strike(*_: object) -> None:
    raise RuntimeError(_EXPECTED[1])


class _Scenes:
    """What users do, at random."""

    def __init__(self, note: Callable[..., None], rows: list[int]) -> None:
        self.note = note
        self.rows = rows

    def exclusive(self) -> None:
        from django_tasklock import TaskLock

        with TaskLock(f"storm:{random.randrange(NAMES)}", blocking_timeout=random.choice([0.01, 1, 4])) as lock:
            self._stays("lock", lock)

    def permitted(self) -> None:
        from django_tasklock import ConcurrencyLimiter

        with ConcurrencyLimiter("storm", LIMIT, blocking_timeout=random.choice([0.01, 1, 4])) as permit:
            self._stays("permit", permit)

    def guarded(self) -> None:
        from django_tasklock import current_claim, model_lock
        from tests.support.guards import AGAIN
        from tests.testapp.models import Video

        row = random.choice(self.rows)

        @model_lock(Video, "storm-row:{pk}", pk="pk", guard=AGAIN, on_conflict=random.choice(["skip", "raise"]),
                    on_unavailable=random.choice(["run", "raise"]))  # fmt: skip
        def work(pk: int) -> None:
            claim = current_claim()
            assert claim is not None
            for _ in range(random.randrange(6)):
                since = time.monotonic()
                claim.update(progress=claim.epoch)
                self.note("wrote", str(row), str(claim.epoch), since, time.monotonic())
                time.sleep(random.uniform(0, 0.1))
            if random.random() < 0.2:
                raise ZeroDivisionError(_EXPECTED[0])

        work(row)

    def plain(self) -> None:
        from django_tasklock import acquire_task_lock, extend_task_lock, release_task_lock

        name = f"plain:{os.getpid()}:{random.randrange(NAMES)}"
        if acquire_task_lock(name, timeout=4, lease=random.choice([None, LEASE])):
            extend_task_lock(name, 4)
            release_task_lock(name)

    def coroutines(self) -> None:
        async def one() -> None:
            from django_tasklock import TaskLock

            async with TaskLock(
                f"storm:{random.randrange(NAMES)}", blocking_timeout=random.choice([0.01, 1, 4])
            ) as lock:
                await self._astays(lock)

        async def several() -> None:
            tasks = [asyncio.create_task(one()) for _ in range(3)]
            await asyncio.sleep(random.uniform(0, 0.5))
            for task in tasks:
                if random.random() < 0.5:
                    task.cancel()
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(outcome, Exception):
                    raise outcome

        asyncio.run(several())

    def struck(self) -> None:
        """A time limit strikes at any point, as Celery's soft one does."""
        from django_tasklock import task_lock_context

        name = f"storm:{random.randrange(NAMES)}"
        signal.setitimer(signal.ITIMER_REAL, random.choice([0.0005, 0.002, 0.01, 0.1]) * random.uniform(0.2, 2))
        try:
            with task_lock_context(name, raise_on_fail=False) as acquired:
                if acquired:
                    time.sleep(random.uniform(0, 0.1))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _stays(self, kind: str, lock: Any) -> None:
        token, ends = lock.token, time.monotonic() + random.choice([0.01, 0.3, LEASE * 1.5])
        while time.monotonic() < ends and self._looks(kind, lock, token):
            time.sleep(random.uniform(0, 0.05))

    async def _astays(self, lock: Any) -> None:
        token, ends = lock.token, time.monotonic() + random.choice([0.01, 0.3, LEASE * 1.5])
        while time.monotonic() < ends and self._looks("lock", lock, token):  # noqa: ASYNC110  # a body that works
            await asyncio.sleep(random.uniform(0, 0.05))

    def _looks(self, kind: str, lock: Any, token: str) -> bool:
        since = time.monotonic()
        if not lock.held:
            return False
        self.note(kind, lock.name, token, since, since)  # it was intact when it was looked at, which was later
        return True
