"""A fork while another thread writes to SQLite: the child has inherited the connection, and must leave it alone."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from django_tasklock.db.forks import no_fork

BEGIN = """
import gc, os, sys, threading, time
import django
from django.conf import settings
settings.DATABASES["default"] = {"ENGINE": "django.db.backends.sqlite3", "NAME": sys.argv[1]}
django.setup()
from django.db import connection, connections, transaction

with transaction.atomic(), connection.cursor() as cursor:
    cursor.execute("CREATE TABLE lines (line text)")
    cursor.executemany("INSERT INTO lines VALUES (%s)", [("x" * 500,)] * 500)
connections.close_all()
begun, go_on = threading.Event(), threading.Event()

def run(*queries):
    with connection.cursor() as cursor:
        for query in queries:
            cursor.execute(query)

def write():
    "In the frames of this thread, which a child does not clear, there is no connection while it waits."
    with transaction.atomic():
        run("PRAGMA cache_size = 5", "UPDATE lines SET line = 'y' || line")  # or nothing is written before the commit
        begun.set()
        go_on.wait()
        run("INSERT INTO lines SELECT line FROM lines")
"""

A_USERS = """
thread = threading.Thread(target=write, daemon=True)
thread.start()
begun.wait()
child = os.fork()
if child == 0:
    gc.collect()
    os._exit(0)
os.waitpid(child, 0)
go_on.set()
thread.join()
"""

OUR_THREAD = """
from django_tasklock.db import forks
from django_tasklock.db.session import Session

def verb(alias, again):
    write()

thread = threading.Thread(target=Session().run, args=(verb,), daemon=True)
thread.start()
begun.wait()
"""

OURS = """
sleep = time.sleep
time.sleep = lambda seconds: (go_on.set(), sleep(seconds))  # whoever waits for that thread lets it go on
child = os.fork()
if child == 0:
    run("PRAGMA busy_timeout = 0", "INSERT INTO lines SELECT 'child'")
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
thread.join()
"""

GRANDCHILD = """
import signal

forks.SQLITE_MAX_WAIT = 0.0
child = os.fork()
if child == 0:
    forks.SQLITE_MAX_WAIT = 3600.0
    signal.alarm(20)  # ends it, if it waits for a thread of its parent
    os._exit(os.waitstatus_to_exitcode(os.waitpid(os.fork() or os._exit(0), 0)[1]))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
go_on.set()
thread.join()
"""


def lines(path: Path) -> int:
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return int(connection.execute("SELECT count(*) FROM lines").fetchone()[0])


def run_code(code: str, path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(path)],
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.parametrize(
    ("code", "left"),
    [
        pytest.param(A_USERS, 1000, id="a user's thread"),
        pytest.param(OUR_THREAD + OURS, 1001, id="ours"),
        pytest.param(OUR_THREAD + GRANDCHILD, 1000, id="a child that forks", marks=pytest.mark.slow),
    ],
)
def test_fork(tmp_path: Path, code: str, left: int) -> None:
    """Closed by the child it would be rolled back, with what the parent writes after that on top of it."""
    path = tmp_path / "db.sqlite3"
    run_code(BEGIN + code, path)
    assert lines(path) == left


def test_threads_that_keep_others_from_forking_do_not_wait_for_each_other() -> None:
    """One may hang in a request to a store, and another has leases to renew."""
    inside, over = threading.Event(), threading.Event()

    def hang() -> None:
        with no_fork():
            inside.set()
            over.wait(20)

    thread = threading.Thread(target=hang)
    thread.start()
    assert inside.wait(20)
    with no_fork():
        assert thread.is_alive()
    over.set()
    thread.join()


IN_A_BODY = """
import os, sys
import django
from django.conf import settings
settings.DATABASES["default"] = {"ENGINE": "django.db.backends.sqlite3", "NAME": sys.argv[1]}
settings.TASKLOCK = {"BACKEND": "django_tasklock.backends.memory.MemoryBackend", "METRICS": False}
django.setup()
from django.db import connection
from django_tasklock import task_lock
from tests.support.processes import fork_in_c

@task_lock("inner")
def inner():
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")

@task_lock("outer")
def outer():
    child = FORK
    if child == 0:
        inner()
        os._exit(connection.connection is not None)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "a connection is left open"

outer()
"""


@pytest.mark.parametrize(
    "fork", ["os.fork()", pytest.param("fork_in_c()", marks=pytest.mark.slow)], ids=["Python's", "as uWSGI's"]
)
def test_bodies_in_a_child_of_a_body_close_what_they_open(tmp_path: Path, fork: str) -> None:
    run_code(IN_A_BODY.replace("FORK", fork), tmp_path / "db.sqlite3")
