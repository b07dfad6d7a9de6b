"""A fork: the child has none of its parent's connections and locks, leaves theirs alone, and leaves none of its own."""

from __future__ import annotations

import json
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from django_tasklock.db.forks import no_fork
from tests.support.database_pool import needs_pool
from tests.support.public import script
from tests.testapp.models import Video

FORKS = pytest.mark.parametrize("fork", ["os.fork()", "fork_in_c()"], ids=["Python's", "as uWSGI's"])

SQLITE = """
import gc, os, threading, time
import django
from django.conf import settings
settings.DATABASES["default"] = {"ENGINE": "django.db.backends.sqlite3", "NAME": "THE_FILE"}
settings.TASKLOCK = {"BACKEND": "django_tasklock.backends.memory.MemoryBackend", "METRICS": False}
django.setup()
from django.db import connection, connections, transaction
from django_tasklock import task_lock
from tests.support.processes import fork_in_c

def run(*queries):
    with connection.cursor() as cursor:
        for query in queries:
            cursor.execute(query)
"""

WRITING = """
with transaction.atomic(), connection.cursor() as cursor:
    cursor.execute("CREATE TABLE lines (line text)")
    cursor.executemany("INSERT INTO lines VALUES (%s)", [("x" * 500,)] * 500)
connections.close_all()
begun, go_on = threading.Event(), threading.Event()

def write(*verb):
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

OURS = """
from django_tasklock.db.session import Session

thread = threading.Thread(target=Session().run, args=(write,), daemon=True)
thread.start()
begun.wait()
sleep = time.sleep
time.sleep = lambda seconds: (go_on.set(), sleep(seconds))  # whoever waits for that thread lets it go on
child = os.fork()
if child == 0:
    run("PRAGMA busy_timeout = 0", "INSERT INTO lines SELECT 'child'")
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
thread.join()
"""


def run_in_a_process(code: str) -> str:
    """What it prints."""
    return script(code, "-W", "ignore", DJANGO_SETTINGS_MODULE="tests.settings")


def run_on_sqlite(code: str, path: Path) -> None:
    run_in_a_process(SQLITE.replace("THE_FILE", str(path)) + code)


@pytest.mark.parametrize(("code", "left"), [(A_USERS, 1000), (OURS, 1001)], ids=["a user's thread", "ours"])
def test_a_thread_of_the_parent_writes_to_sqlite(tmp_path: Path, code: str, left: int) -> None:
    """Closed by the child it would be rolled back, with what the parent writes after that on top of it."""
    path = tmp_path / "db.sqlite3"
    run_on_sqlite(WRITING + code, path)
    with sqlite3.connect(path) as file:
        assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert file.execute("SELECT count(*) FROM lines").fetchone() == (left,)


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
@task_lock("inner")
def inner():
    run("SELECT 1")

@task_lock("outer")
def outer():
    child = FORK
    if child == 0:
        inner()
        os._exit(connection.connection is not None)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "a connection is left open"

outer()
"""


@FORKS
def test_bodies_in_a_child_of_a_body_close_what_they_open(tmp_path: Path, fork: str) -> None:
    run_on_sqlite(IN_A_BODY.replace("FORK", fork), tmp_path / "db.sqlite3")


FACTS = """
import json, os

def in_a_child(ask, fork=os.fork):
    "What ``ask()`` says in a child."
    read, write = os.pipe()
    child = fork()
    if child == 0:
        try:
            os.write(write, json.dumps(ask()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        facts = json.loads(pipe.read() or b"null")
    os.waitpid(child, 0)
    return facts
"""

WITH_LOCKS = """
import os
import django
from django.conf import settings
settings.TASKLOCK = {"BACKEND": "django_tasklock.backends.database.DatabaseBackend"}
django.setup()
from django.db import connection
from django_tasklock import TaskLock, task_lock
from django_tasklock.backends import get_backend
from django_tasklock.types import Released
from tests.support.processes import fork_in_c
from tests.support.stores import an_ask, granted

def session():
    with connection.cursor() as cursor:
        cursor.execute({"postgresql": "SELECT pg_backend_pid()", "mysql": "SELECT connection_id()"}[connection.vendor])
        return cursor.fetchone()[0]

def talk(who):
    "Statements whose answers would be wrong if somebody else read them, or theirs were read here."
    for number in range(30):
        ask = an_ask(f"{who}:{number}")
        granted(get_backend().acquire(ask))
        assert get_backend().get(ask.name).token == ask.token
        assert get_backend().release(ask.name, ask.token) is Released.RELEASED

@task_lock("forks")
def body():
    before = session()

    @task_lock("child")
    def work():
        talk("child")
        return session() != before

    def ask():
        facts = {"held": TaskLock("forks").held, "inherited": connection.connection is not None, "own": work()}
        return {**facts, "left": connection.connection is not None}

    facts = in_a_child(ask, lambda: FORK)
    talk("parent")
    return {**facts, "kept": session() == before}

print(json.dumps(body()))
"""


def facts(code: str) -> dict[str, Any]:
    return dict(json.loads(run_in_a_process(FACTS + code).splitlines()[-1]))


@pytest.mark.database
@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite forbids a child to close what it has inherited")
@FORKS
def test_in_a_body_with_locks_in_the_database(fork: str) -> None:
    found = facts(WITH_LOCKS.replace("FORK", fork))
    assert found == {"held": False, "inherited": False, "own": True, "left": False, "kept": True}


WITH_A_POOL = """
import gc, os
import django
from django.conf import settings
settings.DATABASES["default"]["OPTIONS"] = {"pool": {"min_size": 3, "max_size": 3, "timeout": 10}}
django.setup()
from django.db import connection, connections
from django_tasklock import Claim, StateGuard, release_connections
from tests.testapp.models import Video

def pid():
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return cursor.fetchone()[0]

def pids():
    "Those of all three: nobody gets one that is out."
    pool, found = connection.pool, set()
    out = [pool.getconn() for _ in range(3)]
    for one in out:
        found.add(one.info.backend_pid)
        assert one.execute("SELECT 1").fetchone() == (1,)
        pool.putconn(one)
    return found

def ask():
    from django_tasklock.db.pools import figures  # not before the fork: a worker does not either
    facts = {"empty": figures("default").checked_in == 0, "own": pid() not in before}
    facts["sockets"] = [os.readlink(f"/proc/self/fd/{fd}").startswith("socket:") for fd in inherited]
    guard = StateGuard(claim_from=["uploading"], claim_as="processing", done="ready")
    Claim.take(Video, VIDEO, guard, "child").finish()
    connections.close_all()
    connection.close_pool()  # as Celery does in a new pool process
    gc.collect()
    return facts

pid()
release_connections()
connection.pool.wait(30)
before = pids()
inherited = [one.fileno() for one in connection.pool._pool]
facts = in_a_child(ask)
facts["parent"] = pids() == before
connections.close_all()
connection.close_pool()
print(json.dumps(facts))
"""


@pytest.mark.database
@pytest.mark.django_db(transaction=True)
def test_of_a_pool_the_child_talks_to_the_server_on_sockets_of_its_own() -> None:
    needs_pool()
    video = Video.objects.create()
    found = facts(WITH_A_POOL.replace("VIDEO", str(video.pk)))
    assert found.pop("sockets") in ([False] * 3, [])
    assert found == {"empty": True, "own": True, "parent": True}
    video.refresh_from_db()
    assert video.status == "ready"
