"""``python -m benchmarks.database``: a free lock in PostgreSQL, taken and given back, beside django-pglock's.

It starts a PostgreSQL of its own, which keeps its promises about power cuts (``fsync`` is on). The unit is two
statements of nothing through Django's cursor; the second floor commits twice, which waits for the disk. django-pglock's
lock belongs to the connection and writes nothing; ours is a row that outlives the connection, with a lease, a fence and
counts. All take turns in slices of one process.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import django
from django.conf import settings

from benchmarks.children import start
from benchmarks.plots import bars
from benchmarks.report import Table, spread
from tests.support.redis_server import free_port

SLICE = 0.1  # seconds
NAMES = 64
COUNTED = 50  # pairs over which statements are counted


def initdb() -> str:
    """The program that makes a PostgreSQL of the newest one there is; empty: there is none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return str(found[-1]) if found else shutil.which("initdb") or ""


@contextmanager
def running_postgres() -> Iterator[int]:
    """A PostgreSQL of our own, on this port; it refuses to run as root."""
    programs, port = Path(initdb()).parent, free_port()
    folder = Path(tempfile.mkdtemp(prefix="tasklock-postgres-"))
    user: dict[str, Any] = {"cwd": "/", "stdout": subprocess.DEVNULL}
    if os.geteuid() == 0:
        shutil.chown(folder, "nobody", "nogroup")
        user |= {"user": "nobody", "group": "nogroup", "extra_groups": []}
    data = folder / "data"
    subprocess.run([programs / "initdb", "--auth=trust", "--username=tasklock", "-D", data], check=True, **user)
    options = ["-p", str(port), "-k", folder, "-c", "listen_addresses=127.0.0.1"]
    server = subprocess.Popen([programs / "postgres", "-D", data, *options], stderr=subprocess.DEVNULL, **user)
    try:
        ready = [programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]
        ends = time.monotonic() + 60
        while subprocess.run(ready, check=False).returncode:
            if server.poll() is not None or time.monotonic() > ends:
                raise OSError("PostgreSQL does not start")
            time.sleep(0.05)
        yield port
    finally:
        server.terminate()
        server.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


def configure(port: int) -> None:
    """Settings with locks in that database, and their tables."""
    from django.core.management import call_command
    from django.db import connections

    database = {"ENGINE": "django.db.backends.postgresql", "NAME": "postgres", "USER": "tasklock"}
    settings.configure(
        SECRET_KEY="benchmark",
        USE_TZ=True,
        INSTALLED_APPS=["pgactivity", "pglock", "django_tasklock"],
        DATABASES={"default": {**database, "HOST": "127.0.0.1", "PORT": port, "CONN_MAX_AGE": None}},
        TASKLOCK={"BACKEND": "django_tasklock.backends.database.DatabaseBackend", "ON_UNAVAILABLE": "raise"},
    )
    django.setup()
    call_command("migrate", "tasklock", verbosity=0)
    with connections["default"].cursor() as cursor:
        cursor.execute("CREATE TABLE floor (id int PRIMARY KEY, number int)")
        cursor.execute("INSERT INTO floor SELECT id, 0 FROM generate_series(0, %s) AS id", [NAMES])
    connections.close_all()


def kinds() -> dict[str, Callable[[int], None]]:
    """What is measured: one pair of a name of this number."""
    import pglock
    from django.db import connection

    from django_tasklock import TaskLock, acquire_task_lock, release_task_lock

    def nothing(number: int) -> None:
        with connection.cursor() as cursor:
            for _ in range(2):
                cursor.execute("SELECT 1")
                cursor.fetchone()

    def written(number: int) -> None:
        with connection.cursor() as cursor:
            for _ in range(2):
                cursor.execute("UPDATE floor SET number = number + 1 WHERE id = %s", [number])

    def advisory(number: int) -> None:
        with pglock.advisory(f"video:{number}", timeout=0) as acquired:
            assert acquired

    def lock(number: int) -> None:
        with TaskLock(f"video:{number}"):
            pass

    def functions(number: int) -> None:
        assert acquire_task_lock(f"video:{number}")
        assert release_task_lock(f"video:{number}")

    return {
        "floor: two statements": nothing,
        "floor: a row written twice": written,
        "django-pglock, advisory": advisory,
        "TaskLock, database store": lock,
        "acquire_task_lock, release_task_lock": functions,
    }


def measured(parent: Any, seconds: float) -> None:
    """One round, in a process of its own."""
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    ours = kinds()
    rates: dict[str, list[float]] = {label: [] for label in ours}
    statements = {}
    for label, pair in ours.items():
        for number in range(NAMES):
            pair(number)
        with CaptureQueriesContext(connection) as captured:
            for number in range(COUNTED):
                pair(number)
        statements[label] = len(captured) / COUNTED
    for _ in range(round(seconds / SLICE)):
        for label, pair in random.sample(list(ours.items()), len(ours)):
            began, made = time.perf_counter(), 0
            while time.perf_counter() - began < SLICE:
                pair(made % NAMES)
                made += 1
            rates[label].append(made / (time.perf_counter() - began))
    parent.send(({label: median(some) for label, some in rates.items()}, statements))


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.database", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each in a round")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the time of a pair there, as SVG")
    options = parser.parse_args()
    if not initdb():
        print("No PostgreSQL is installed: left out.")
        return 0
    found: list[tuple[dict[str, float], dict[str, float]]] = []
    table = Table("A free lock in PostgreSQL", ["", "pairs, of the floor's", "statements", "(pairs/s)"])
    with running_postgres() as port:
        configure(port)
        for number in range(options.rounds):
            table.progress(f"round {number + 1}")
            child = start(measured, options.seconds)
            found.append(child.receive(options.seconds * 20 + 60))
            child.join()
    floor = "floor: two statements"
    for label in found[0][0]:
        table.add(
            label,
            spread([rates[label] / rates[floor] for rates, _ in found], digits=3),
            f"{median(statements[label] for _, statements in found):.1f}",
            f"{median(rates[label] for rates, _ in found):.0f}",
        )
    print(table)
    if options.plot:
        title = "Time of a free lock in PostgreSQL, taken and given back (two statements: 1; less is better)"
        figures = {label: [rates[floor] / rates[label] for rates, _ in found] for label in found[0][0]}
        options.plot.write_text(bars(title, figures), "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
