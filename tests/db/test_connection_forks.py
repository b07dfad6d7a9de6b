"""A fork in a body that uses the database: the child has none of the parent's connections, and leaves none open."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.db import connection

pytestmark = [
    pytest.mark.database,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite forbids a child to close what it has inherited"),
]

PARENT = """
import json, os
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

SESSION = {"postgresql": "SELECT pg_backend_pid()", "mysql": "SELECT connection_id()", "sqlite": "SELECT 1"}
read, write = os.pipe()

def session():
    with connection.cursor() as cursor:
        cursor.execute(SESSION[connection.vendor])
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
    child = FORK
    if child == 0:
        facts["held"] = TaskLock("forks").held
        facts["inherited"] = connection.connection is not None
        talk("child")
        facts["own"] = connection.vendor == "sqlite" or session() != before
        raise SystemExit
    talk("parent")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return session() == before

facts = {}
try:
    kept = body()
except SystemExit:
    facts["left"] = connection.connection is not None
    os.write(write, json.dumps(facts).encode())
    os._exit(0)
os.close(write)
with os.fdopen(read, "rb") as pipe:
    print(json.dumps({**json.loads(pipe.read() or b"null"), "kept": kept}))
"""


@pytest.mark.parametrize("fork", ["os.fork()", "fork_in_c()"], ids=["Python's", "as uWSGI's"])
def test_fork(fork: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", PARENT.replace("FORK", fork)],
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == {"held": False, "inherited": False, "own": True, "left": False, "kept": True}
