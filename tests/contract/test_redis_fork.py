"""A forked child talks to Redis on connections of its own, and neither renews nor releases what its parent holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = pytest.mark.redis

PARENT = """
import gc, json, os, sys, threading
import django
django.setup()
from django_tasklock import TaskLock, acquire_task_lock, release_task_lock
from django_tasklock.backends import get_backend
from django_tasklock.locks.heartbeat import heartbeat
from django_tasklock.types import Released
from tests.support.processes import fork_in_c
from tests.support.stores import an_ask, granted

name = sys.argv[1]

def end():
    backend = get_backend()
    backend.get(name)
    connection = backend.client.take()
    backend.client.keep(connection)
    return connection._sock.getsockname()

def busy(kind):
    "Verbs whose replies would be wrong if somebody else read them, or theirs were read here."
    for index in range(200):
        ask = an_ask(f"{name}:{kind}:{index}")
        granted(get_backend().acquire(ask))
        assert get_backend().get(ask.name).token == ask.token
        assert get_backend().release(ask.name, ask.token) is Released.RELEASED

lock = TaskLock(name, lease=4)
lock.acquire()
assert acquire_task_lock(f"{name}:plain", 60)
assert heartbeat.alive
parents = get_backend()
before = end()
read, write = os.pipe()
child = FORK
if child == 0:
    try:
        facts = dict(
            another_backend=get_backend() is not parents,
            another_connection=end() != before,
            held=lock.held,
            heartbeat=heartbeat.alive or len(heartbeat),
            plain=release_task_lock(f"{name}:plain"),
        )
        busy("child")
        with TaskLock(f"{name}:child") as own:
            facts["own"] = own.held and len(heartbeat) == 1
        del parents
        gc.collect()  # what is collected here must not close the parent's connections
        os.write(write, json.dumps(facts).encode())
    finally:
        os._exit(0)
os.close(write)
busy("parent")
with os.fdopen(read, "rb") as pipe:
    facts = json.loads(pipe.read() or b"null")
os.waitpid(child, 0)
facts["parent_keeps_its_connection"] = end() == before
deadline = lock.lease.deadline
while lock.lease.deadline == deadline:  # until the next renewal
    assert lock.held, "the parent's lock was lost"
facts["parent_holds"] = lock.release() is Released.RELEASED
facts["parent_plain"] = release_task_lock(f"{name}:plain")
print(json.dumps(facts))
"""


@pytest.mark.parametrize("fork", ["os.fork()", "fork_in_c()"], ids=["Python's", "as uWSGI's"])
def test_fork(name: str, fork: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", PARENT.replace("FORK", fork), name],
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == {
        "another_backend": True,
        "another_connection": True,
        "held": False,
        "heartbeat": 0,
        "plain": False,
        "own": True,
        "parent_keeps_its_connection": True,
        "parent_holds": True,
        "parent_plain": True,
    }
